/*
 * The messages between host, spawner and zygote: one message per SOCK_SEQPACKET datagram, descriptors
 * attached with SCM_RIGHTS.  Native byte order (one machine, one build), but versioned: the kernel's extension
 * and the spawner may come from another install than the library.
 *
 *     host ── ZYGOTE_START ──▶ spawner ── fork+exec ──▶ zygote
 *     host ── KERNEL_FORK + 4 fds ──▶ spawner ── the same ──▶ zygote ── fork ──▶ kernel
 *     zygote ── KERNEL_FORKED(pid), KERNEL_EXITED(status) ──▶ spawner ──▶ host
 *     host ── KERNEL_BRANCH ──▶ spawner; FORK (wire/frame.h) ──▶ a live kernel ── fork ──▶ kernel; host ── KERNEL_ADOPT(pid) ──▶ spawner
 */
#ifndef CELL_WIRE_SPAWN_MSG_H
#define CELL_WIRE_SPAWN_MSG_H

#include <stdint.h>

#define CELL_SPAWN_VERSION 5u
#define CELL_SPAWN_MAX_FDS 21 /* three streams, 16 more of a program, two plans */
#define CELL_SPAWN_KERNEL_FDS 5 /* socket, stdout, stderr, ring, and the plan of a sandboxed one */
#define CELL_SPAWN_PLAN_FD 4

enum cell_spawn_type {
	/* host to spawner */
	/* id: zygote; payload: a = argc strings, then environment strings, each NUL-terminated; fd: its plan, if it is confined */
	CELL_SPAWN_ZYGOTE_START = 1,
	CELL_SPAWN_ZYGOTE_STOP,      /* id: zygote */
	/*
	 * id: kernel, a: zygote, b: 1 for the pool; fds: socket, stdout, stderr, ring[, plan]. Spawner to zygote, with a plan: payload:
	 * struct cell_spawn_join; fds: the same, then as many as its counts say.
	 */
	CELL_SPAWN_KERNEL_FORK,
	CELL_SPAWN_KERNEL_SIGNAL,    /* id: kernel, a: signal */
	CELL_SPAWN_KERNEL_KILL,      /* id: kernel; ends in KERNEL_EXITED once all its processes have ended too */
	CELL_SPAWN_ZYGOTE_WARM,      /* id: zygote; finish warming now; answered by ZYGOTE_WARMED */
	/*
	 * id: process, a: argc, b: CELL_SPAWN_WITH_*; payload: folder, PATH, argv, environment; fds: stdout, stderr[, stdin],
	 * others that it gets from number 3 on[, plan, the plan of its session].  With CELL_SPAWN_IN_KERNEL a command: it runs where that
	 * kernel runs and ends with it, and has no others.
	 */
	CELL_SPAWN_PROCESS_START,
	CELL_SPAWN_PROCESS_KILL,     /* id: process; its whole group */
	CELL_SPAWN_PROCESS_SIGNAL,   /* id: process, a: signal, b: 1 for its whole group */
	CELL_SPAWN_KERNEL_SHARE,     /* id: sandboxed kernel, a: enum cell_cgroup_share */
	CELL_SPAWN_KERNEL_BRANCH,    /* id: kernel that a live one is about to fork: an unknown child of the spawner may be it */
	CELL_SPAWN_KERNEL_ADOPT,     /* id: the same, a: pid (0: there is none); answered by KERNEL_FORKED */
	/* spawner to host (the zygote's own messages are passed on) */
	/*
	 * id: zygote, a: pid, b: 1 + the plan's step that was skipped although it matters; payload: JSON {"version", "ipython",
	 * "preload_error"?}
	 */
	CELL_SPAWN_ZYGOTE_READY = 64,
	CELL_SPAWN_ZYGOTE_WARMED,     /* id: zygote */
	/*
	 * id: zygote, a: wait status, b: errno when it never started; payload: end of its stderr, or, if it has a plan and never started,
	 * struct cell_spawn_failure
	 */
	CELL_SPAWN_ZYGOTE_EXITED,
	/*
	 * id: kernel, a: pid (0: fork failed, b: errno); payload with a plan: struct cell_plan_report of its jail.  Zygote to spawner:
	 * pid as the zygote sees it; fd: of a sandboxed one its pidfd, unless it has ended already
	 */
	CELL_SPAWN_KERNEL_FORKED,
	/* id: kernel, a: wait status (-1: unknown), b: CELL_SPAWN_EXIT_*; payload with a plan: struct cell_cgroup_usage */
	CELL_SPAWN_KERNEL_EXITED,
	/* id: process, a: pid, of a command as its session numbers it; spawner's jail to spawner: a 0, b: errno, or a pidfd */
	CELL_SPAWN_PROCESS_STARTED, /* fd: the socket of its egress proxy, if its plan has one */
	/* id: process, a: wait status, b: errno when it never started; payload then: struct cell_spawn_failure */
	CELL_SPAWN_PROCESS_EXITED,
};

/* How a sandboxed kernel comes into its sandbox. */
struct cell_spawn_join {
	uint32_t n_namespaces; /* handles; 0: the sandbox has none */
	uint32_t n_groups; /* files of cgroups */
	uint32_t becomes; /* 1: the plan's uid, as the zygote has another */
};

#define CELL_SPAWN_WITH_STDIN 1
#define CELL_SPAWN_WITH_PLAN 2
#define CELL_SPAWN_IN_KERNEL 4 /* the kernel's id is in the bits from CELL_SPAWN_KERNEL_SHIFT on */
#define CELL_SPAWN_WITH_TTY 8 /* its stdin is a terminal, which becomes that of its session */
#define CELL_SPAWN_KERNEL_SHIFT 8
#define CELL_SPAWN_MAX_COMMANDS 256 /* of one kernel */

enum cell_spawn_stage {
	CELL_SPAWN_AT_BEGIN = 1, /* steps of every process: a session, its streams */
	CELL_SPAWN_AT_FDS,
	CELL_SPAWN_AT_CWD,
	CELL_SPAWN_AT_EXEC,
	CELL_SPAWN_AT_PLAN, /* its jail, or a step of its plan */
};

/* The outcome of a start. */
struct cell_spawn_failure {
	int32_t stage; /* enum cell_spawn_stage */
	int32_t sys; /* errno */
	int32_t step; /* AT_PLAN: as in struct cell_plan_report; -1: not a step */
};

#define CELL_SPAWN_EXIT_OOM 1 /* the machine's OOM killer struck while it lived */

struct cell_spawn_msg {
	uint32_t version;
	uint32_t type;
	uint64_t id;
	int64_t a;
	int64_t b;
	/* payload follows */
};

#endif
