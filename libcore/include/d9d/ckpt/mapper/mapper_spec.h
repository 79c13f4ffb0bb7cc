/* mapper_spec.h - checkpoint mappings described in a JSON file, d9d.mapper.v1.
 *
 *     {"schema": "d9d.mapper.v1",
 *      "stages": [
 *        [{"op": "rename", "from": "wte.weight", "to": "embed.weight"},
 *         {"op": "stack", "from": "h.{l}.expert.{e}.up", "over": "e", "to": "h.{l}.up"}],
 *        [{"op": "transpose", "from": "h.{l}.up", "dims": [1, 2]}]],
 *      "rest": "keep"}
 *
 * Stages run one after another.  The steps of one stage run independently of each other on the
 * names that exist when the stage begins: those of the source, or the outputs of earlier stages.  A
 * name that no step of a stage mentions passes through it.  One step is applied to every match of
 * its patterns:
 *
 *     {l}       in `from` matches one or more characters other than a dot
 *     {l:int}   a number;  {l:any} dots too;  {{ and }} are braces
 *     {l}       in `to` is what was matched
 *
 *     op         from      to         besides
 *     identity   patterns  template   template: under another name; else as before
 *     rename     patterns  template
 *     select     patterns             "parent": P takes P.from and gives from
 *     transpose  patterns  template   "dims": [-2, -1]
 *     squeeze    patterns  template   "dim": null, which is every dimension of size 1
 *     unsqueeze  patterns  template   "dim": 0
 *     unflatten  patterns  template   "dim": 0; "sizes": one of them may be -1, what remains
 *     flatten    patterns  template   "start_dim": 0, "end_dim": -1: into one, both included
 *     cast       patterns  template   "dtype"
 *     drop       patterns
 *     stack      parts     template   "dim": 0; "over", "count"
 *     concat     parts     template   "dim": 0; "over", "count"
 *     unstack    patterns  templates  "dim": 0; "over", "count"
 *     chunk      patterns  templates  "dim": 0; "over", "count"
 *     split      patterns  templates  "dim": 0; "sizes"
 *     duplicate  patterns  templates
 *     distribute patterns  template   "mesh", "placements", "coordinate"
 *     gather     parts     template   "mesh", "placements"; "over", "count"
 *     scope      prefix    prefix     "stages", "rest": names with the prefix taken off
 *     shard                           "total", "current", "stages", "rest"
 *
 * Parts are either a list of patterns with the same captures, one tensor each, or one pattern and
 * "over".  "over" names the capture that numbers the parts 0, 1, ...; the plan lists missing parts.
 * "over" with "count" also numbers the templates that a tensor is divided into.  An unstack of a
 * source tensor needs no count.  An "optional" step may match nothing.
 *
 * "rest" decides about names that no step takes: "refuse" (an error, the default), "keep" or
 * "drop".  "expect" gives the shapes of source tensors by pattern; a letter stands for the same
 * size everywhere: {"{x:any}.qkv.weight": ["3*H", "H"]}.  "config" is a patch to config.json (RFC
 * 7396).
 *
 * Outputs are in the order of their names, with numbers in names compared by value, whatever the
 * order of the source's files.
 */
#ifndef D9D_CKPT_MAPPER_MAPPER_SPEC_H
#define D9D_CKPT_MAPPER_MAPPER_SPEC_H

#include "d9d/ckpt/mapper/mapper.h"
#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_MAPPER_SPEC_MAX (16u << 20) /* bytes of a description */

typedef struct d9d_mapper_spec d9d_mapper_spec;

/* The key table of a description; its schema is d9d.mapper.v1. */
extern D9D_API const d9d_table d9d_mapper_table;

/* ECONFIG names the JSON path of an error in the description. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_spec_read(const char *path, d9d_mapper_spec **out);
D9D_API D9D_MUST_USE d9d_status d9d_mapper_spec_parse(const char *name, const char *text, size_t n,
                                                      d9d_mapper_spec **out);
D9D_API void d9d_mapper_spec_free(d9d_mapper_spec *s);
/* The patch to config.json, or NULL; borrowed. */
D9D_API const json_t *d9d_mapper_spec_config(const d9d_mapper_spec *s);

/* Builds the mapper for the tensors of a source.  ECONFIG: a pattern matches nothing, or names
 * collide.  EMISMATCH: a shape is not as expected. */
D9D_API D9D_MUST_USE d9d_status d9d_mapper_spec_build(const d9d_mapper_spec *s,
                                                      const d9d_tensor_source *src,
                                                      d9d_mapper **out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CKPT_MAPPER_MAPPER_SPEC_H */
