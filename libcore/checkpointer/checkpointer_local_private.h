/* checkpointer_local_private.h - what the files of local checkpoints share: the layout of a file,
 * and the state of a rank's saves.  See checkpointer/checkpointer_local.h. */
#ifndef D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_PRIVATE_H
#define D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_PRIVATE_H

#include "checkpointer/checkpointer_copy.h"
#include "checkpointer/checkpointer_local.h"
#include "checkpointer/checkpointer_worker.h"
#include "d9d/comm/links.h"

enum {
    D9DI_CHECKPOINTER_LOCAL_DATA = 4096, /* where the bytes begin in a file */
    D9DI_CHECKPOINTER_LOCAL_SLOTS = 2
};

/* The first bytes of a file. */
typedef struct d9di_checkpointer_local_header {
    char magic[8]; /* zeros while the bytes are written */
    int32_t rank, ranks;
    uint64_t job;
    uint64_t layout;   /* a hash of names and sizes */
    uint64_t bytes;    /* after the header */
    uint64_t checksum; /* of the bytes, and of this header */
    d9d_checkpointer_state state;
} d9di_checkpointer_local_header;

/* A file, mapped; data NULL: none. */
typedef struct d9di_checkpointer_local_file {
    char path[4200];
    unsigned char *data;
    size_t size;
} d9di_checkpointer_local_file;

/* What all ranks know of a rank. */
typedef struct d9di_checkpointer_local_member {
    uint64_t host; /* a hash of node and DIR */
    uint64_t bytes;
    int target; /* the rank whose host holds its copy; itself if there is one host */
} d9di_checkpointer_local_member;

/* A save in progress, of checkpointer_local_save.c. */
typedef struct d9di_checkpointer_local_save {
    d9d_checkpointer_state state;
    int slot;
    bool open;              /* begun, and not yet known to have ended on all ranks */
    int64_t begun, blocked; /* in ns: its begin; how long training waited for it */
    bool wait_is_said;      /* that a save had to wait for the one before, once */
    d9di_checkpointer_worker worker;
} d9di_checkpointer_local_save;

struct d9di_checkpointer_local {
    d9di_checkpointer_local_opts opts;
    char id[64];
    int rank, ranks;
    d9di_checkpointer_local_member *members;                           /* [ranks] */
    d9di_checkpointer_local_file own[D9DI_CHECKPOINTER_LOCAL_SLOTS];   /* this rank's */
    d9di_checkpointer_local_file *peer[D9DI_CHECKPOINTER_LOCAL_SLOTS]; /* [ranks]: those that it
                                                                        * holds; others are empty */
    int next;                                                          /* slot of the next save */
    uint64_t layout;
    uint64_t bytes;
    d9d_arena arena;
    d9di_checkpointer_copy copy;
    d9d_links *links;                         /* NULL with one host */
    d9d_links_bytes *incoming;                /* [sources]: of an exchange */
    d9di_checkpointer_local_header *received; /* [sources]: their headers */
    d9di_checkpointer_local_save save;
};

/* Of a file's bytes with this header, whose magic and checksum do not count. */
uint64_t d9di_checkpointer_local_checksum(const d9di_checkpointer_local_file *f,
                                          const d9di_checkpointer_local_header *h);
/* True for what a header's `magic` is once all bytes are there; and makes it so. */
bool d9di_checkpointer_local_header_is_valid(const d9di_checkpointer_local_header *h);
void d9di_checkpointer_local_header_validate(d9di_checkpointer_local_header *h);

/* The arrays of a rank in the order of a file: tensors that are not empty, then counts and rank
 * state. */
typedef struct d9di_checkpointer_local_array {
    const char *name;
    const d9d_tensor *tensor; /* or NULL */
    void *host;               /* or NULL */
    size_t item;              /* of a tensor: its number in the set */
    uint64_t bytes;
    uint64_t at; /* where it begins in the file */
} d9di_checkpointer_local_array;
typedef d9d_status d9di_checkpointer_local_fn(d9di_checkpointer_local *x,
                                              const d9di_checkpointer_local_array *a, void *arg);
d9d_status d9di_checkpointer_local_each(d9di_checkpointer_local *x, d9di_checkpointer_local_fn *fn,
                                        void *arg);
/* The save in progress, if any, ends without a status, as soon as it can. */
void d9di_checkpointer_local_abandon(d9di_checkpointer_local *x);

const char *d9di_checkpointer_local_dir(void);
bool d9di_checkpointer_local_header_read(const char *path, d9di_checkpointer_local_header *out);
/* Creates it if necessary, with its memory; or maps an existing one. */
d9d_status d9di_checkpointer_local_file_create(d9di_checkpointer_local_file *f, size_t size);
d9d_status d9di_checkpointer_local_file_map(d9di_checkpointer_local_file *f);
/* Removes the run's files of jobs with another number of ranks from DIR. */
void d9di_checkpointer_local_remove_others(const char *id, int ranks);
void d9di_checkpointer_local_file_unmap(d9di_checkpointer_local_file *f);

#endif /* D9DI_CHECKPOINTER_CHECKPOINTER_LOCAL_PRIVATE_H */
