/* Plans while they are made: for build.c, build_zygote.c and plan_env.c. */
#ifndef CELL_SANDBOX_BUILDER_H
#define CELL_SANDBOX_BUILDER_H

#include "sandbox/build.h"

struct cell__builder {
	struct cell__buf *out;
	size_t start;
	uint32_t n_steps;
	bool failed;
	uint64_t rights; /* Landlock rights that this machine supports */
	bool own_root;   /* paths are those of the sandbox's new root */
	bool mapped;     /* the caller's files appear as the sandbox's own */
	char **hidden;   /* hidden names, in real folders; NULL-terminated */
};

void cell__builder_begin(struct cell__builder *b, struct cell__buf *out);
struct cell_plan *cell__builder_head(struct cell__builder *b);
void cell__builder_step(struct cell__builder *b, enum cell_plan_stage stage, enum cell_plan_op op, unsigned flags, uint64_t arg,
			uint64_t arg2, const char *a, const char *text);
void cell__builder_step_bytes(struct cell__builder *b, enum cell_plan_stage stage, enum cell_plan_op op, unsigned flags, uint64_t arg,
			      uint64_t arg2, const void *a, size_t a_size, const char *text);
/* Files of the caller, or that the caller makes visible: if the sandbox has an unused uid, they appear as the sandbox's own. */
void cell__builder_bind_own(struct cell__builder *b, enum cell_plan_stage stage, const char *path, unsigned flags);
void cell__builder_root(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine,
			const struct cell__plan_env *env);
/* Whether it is inside a folder of the system that every sandbox sees. */
bool cell__builder_is_system(const char *path);
int cell__builder_finish(struct cell__builder *b, struct cell_error *err);

#endif
