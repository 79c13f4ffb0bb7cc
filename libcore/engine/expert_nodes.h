/* expert_nodes.h - whether mesh.expert_parallel_local is what the nodes of a job are. */
#ifndef D9DI_ENGINE_EXPERT_NODES_H
#define D9DI_ENGINE_EXPERT_NODES_H

#include "d9d/base/log.h"
#include "d9d/comm/mesh.h"

/* Logs a warning for a local group that is on several nodes, and what would be local where groups
 * span nodes and nothing is said.  No result depends on it.  Collective over the job where experts
 * are divided. */
d9d_status d9di_expert_nodes_check(d9d_bootstrap *bootstrap, const d9d_parallel_degrees *d,
                                   const d9d_log *log);

/* Ranks of each node, if rows of `expert` ranks span nodes with as many neighbours on each; else 1.
 * node[r] is the name of rank r's node. */
int64_t d9di_expert_nodes_local(const char *const *node, int64_t ranks, int64_t expert);

#endif /* D9DI_ENGINE_EXPERT_NODES_H */
