/* fuzz_metrics.c - the lines of metrics.jsonl, read in two halves as from a live run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "d9d/report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void report(d9d_run_reader *r)
{
    d9d_run_reader_list runs = {&r, 1};
    d9d_buf b = {0};
    json_t *v = NULL;
    d9d_report_run_summary s;

    for (size_t i = 1; i < r->n; i++)
        must(r->step[i] > r->step[i - 1]);
    must(r->first_changed <= r->n);
    if (d9d_report_summarise_run(r, &s) == D9D_OK)
        must(s.records == (int64_t)r->n);
    if (d9d_report_csv(&runs, &b) == D9D_OK && d9d_report_events(r, &b) == D9D_OK)
        must(b.len > 0);
    if (d9d_report_records_json(&runs, &v) == D9D_OK)
        json_decref(v);
    d9d_buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t half = size / 2;
    const int fd = memfd_create("metrics", 0);
    char path[64];
    d9d_run_reader *r = NULL;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, data, half) == (ssize_t)half &&
        d9d_run_reader_open(path, NULL, &r) == D9D_OK) {
        if (write(fd, data + half, size - half) == (ssize_t)(size - half) &&
            d9d_run_reader_poll(r) == D9D_OK)
            report(r);
        d9d_run_reader_close(r);
    }
    if (fd >= 0)
        (void)close(fd);
    return 0;
}
