/* The limits that more than one file enforces, each with a name.  docs/limits.md lists all limits. */
#ifndef CELL_BASE_LIMITS_H
#define CELL_BASE_LIMITS_H

#define CELL_LIMIT_CODE_BYTES (32u * 1024u * 1024u)  /* one cell's source */
#define CELL_LIMIT_DISPLAYS 1000u                    /* displays kept in one result */
#define CELL_LIMIT_DISPLAY_BYTES (256u * 1024u * 1024u) /* their bytes together */
#define CELL_LIMIT_SPILL_BYTES (1024u * 1024u * 1024u) /* of one run's output in its file; the rest is not kept */
#define CELL_LIMIT_IMAGES 1000u                      /* files that one run makes in images_dir */
#define CELL_LIMIT_IMAGE_BYTES (1024u * 1024u * 1024u) /* their bytes together */
#define CELL_LIMIT_CHANGES 100u                      /* variables of each kind that a result names */
#define CELL_LIMIT_NOTICES 16u                       /* in one result */
#define CELL_LIMIT_NOTICE_BYTES 2000u                /* of one that a session server sends; the rest is cut off */
#define CELL_LIMIT_SPIN_US 10000                    /* that a caller of cell_session_start() may run the loop */
#define CELL_LIMIT_BATCH 100000                      /* runs of one batch */
#define CELL_LIMIT_FORKS 1000                        /* of one call of cell_session_fork() */
#define CELL_LIMIT_CHILDREN 1000                     /* that the code of one session may have at a time */
#define CELL_LIMIT_POINT_NAME 200
#define CELL_LIMIT_UNDO 1000
#define CELL_LIMIT_QUEUE 1000u                       /* cells waiting in one session */
#define CELL_LIMIT_JSON_DEPTH 512u
#define CELL_LIMIT_CALLS 4096u                       /* pending namespace calls of one kernel */
#define CELL_LIMIT_KERNEL_BYTES (256u * 1024u * 1024u) /* kept in memory for one kernel (session/budget.h) ... */
#define CELL_LIMIT_ENGINE_BYTES (1024u * 1024u * 1024u) /* ... and for all kernels of an engine together, ... */
#define CELL_LIMIT_KERNEL_FAIR_BYTES (1024u * 1024u) /* ... but a kernel with no more than this is served even then */
#define CELL_LIMIT_REFUSALS_BYTES (1024u * 1024u) /* of refusals that a kernel leaves unread before it is ended */
#define CELL_LIMIT_TREE_BYTES (64u * 1024u * 1024u)  /* of the JSON of one call as a tree, besides its strings */
#define CELL_LIMIT_LARGE_BYTES (64u * 1024u)         /* a longer message is parsed on the pool, not on the loop */
#define CELL_LIMIT_HEAD_BYTES (1024u * 1024u)        /* the same of a result's or display's head, which has few values */
#define CELL_LIMIT_WORKSPACE_DEPTH 128u              /* folders in folders of a workspace with a limit */
#define CELL_LIMIT_OPEN_ARTIFACTS 256u               /* being read or written in one space */
#define CELL_LIMIT_SESSION_ARTIFACTS 64u             /* the same by one session */
#define CELL_LIMIT_SESSION_WORK 2u                   /* calls of one session that the storage works on at once; more wait */
#define CELL_LIMIT_ARTIFACT_CHUNK (4u * 1024u * 1024u)
#define CELL_LIMIT_ARTIFACT_WHOLE (1024u * 1024u * 1024u) /* saved or loaded by one call */
#define CELL_LIMIT_ARTIFACT_CALLS 16u                /* under way on one open artifact */
#define CELL_LIMIT_SUPPOSED 32u                      /* results that a session keeps for speculation */
#define CELL_LIMIT_SUPPOSED_BYTES (64u * 1024u)      /* of one, with its arguments */
#define CELL_LIMIT_MIME_PARTS 64u
#define CELL_LIMIT_LLM_RUNNING 64                    /* largest concurrency of llm */
#define CELL_LIMIT_LLM_WAITING 4096                  /* queries to the llm of one space that wait */
#define CELL_LIMIT_LLM_PROMPT (4u * 1024u * 1024u)   /* prompt, context and options of one query */
#define CELL_LIMIT_LLM_ANSWER (8u * 1024u * 1024u)
#define CELL_LIMIT_SAVED_PAGE 1000                   /* saved sessions on a page of a list */
#define CELL_DEFAULT_SAVED_PAGE 100
#define CELL_LIMIT_SAVED_LOOKS 2000                  /* descriptions that are read for a page, of all owners */
#define CELL_LIMIT_NOTEBOOK_ANSWER (64u << 20)       /* bytes of the results of a notebook that is run by a request */
#define CELL_LIMIT_SEARCH 1000                       /* largest `limit` of a search of tools or workflows */
#define CELL_LIMIT_SPAWN_MESSAGE (128u * 1024u)      /* spawner protocol, one datagram */
#define CELL_LIMIT_POOL 64
#define CELL_LIMIT_MIN_OUTPUT 1024                   /* smallest max_output_bytes */
#define CELL_LIMIT_MIN_MEMORY (16 << 20)             /* smallest memory_limit of a session */
#define CELL_LIMIT_MIN_CONTAINER_MEMORY (64 << 20)   /* the same in a container, which has a session server inside */
#define CELL_LIMIT_MIN_DISK (1 << 20)                /* smallest disk_limit of a session */
#define CELL_LIMIT_EVENT_QUEUE_BYTES (1u << 20)      /* events a slow reader has not taken yet */

/* A limit as text, for schemas and SQL. */
#define CELL__STRING_OF(x) #x
#define CELL__STRING(x) CELL__STRING_OF(x)

#endif
