/*
 * A spare: a process that is ready to become the next kernel of a Jupyter server.
 *
 * Theory of operation. A kernel has to start an engine and a zygote before its first cell can run, which takes longer than everything else.
 * So each kernel that Jupyter starts leaves a spare behind, which has done that already and waits for the next one:
 *
 *     Jupyter ── starts ── kernel 1 ── starts ── spare
 *        │                                         │ waits at a socket in the user's runtime folder
 *        └────── starts ── kernel 2 ── hands over ─┤
 *                             │                    │ serves the notebook from now on, starts a spare of its own
 *                             └── waits ───────────┘ until the spare has ended, and passes signals on
 *
 *     kernel 2                          spare
 *     {version, connection file}  ───>            with its working directory, stdout and stderr
 *                                 <───  READY
 *     GO                          ───>            until here either side may give up, and kernel 2 then serves by itself
 *     SIGNAL n                    ───>
 *                                 <───  ENDED status
 *     (the socket closes)                         the spare ends
 *
 * Whose spare. The socket's name is a hash of everything that could make a difference: the program, its flags and environment, its control
 * group and the pid of the Jupyter server. A spare serves one notebook. It ends with the server, or when nobody has needed it for a while.
 *
 * Who may speak to it. The folder must belong to this user and be writable for nobody else. Both sides check that the other one has the
 * same user and lives in the same namespaces: sandboxed code does not, should it ever reach the folder.
 */
#define _GNU_SOURCE 1
#include "jupyter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/home.h"
#include "base/libraries.h"

#define SPARE_VERSION 1
#define HANDOVER_MS 3000 /* a spare that has just been started needs a moment */
#define MAX_CGROUP_BYTES (64u * 1024u)
#define HASH_CHARS 32

enum { READY = 1, GO, SIGNAL, ENDED };

struct handover {
	int version;
	char connection_file[PATH_MAX];
};

struct message {
	int type, value;
};

enum { FD_CWD, FD_OUT, FD_ERR, FDS };

/* ---- whose spare -------------------------------------------------------------------- */

/* Each piece with its end, so that "a" "bc" and "ab" "c" differ. */
static void hash_text(EVP_MD_CTX *hash, const char *text)
{
	EVP_DigestUpdate(hash, text, strlen(text) + 1);
}

static bool holds(const char *word, const char *part)
{
	return part >= word && part <= word + strlen(word);
}

/* The flags without the verb and the connection file, the environment without the notebook's name. */
static void hash_start(EVP_MD_CTX *hash, const struct cell_cli_notebook *notebook)
{
	for (int i = 0; i < notebook->argc; i++) {
		const char *word = notebook->argv[i];

		if (word != notebook->verb && !holds(word, notebook->connection_file))
			hash_text(hash, word);
	}
	hash_text(hash, "");
	for (char **at = notebook->env; *at; at++) {
		if (strncmp(*at, "JPY_SESSION_NAME=", strlen("JPY_SESSION_NAME=")))
			hash_text(hash, *at);
	}
}

/* The program of now: a spare of an older one is not used. */
static bool hash_program(EVP_MD_CTX *hash)
{
	CELL_AUTO_BUF struct cell__buf groups = CELL_BUF_INIT;
	struct stat program;

	if (stat("/proc/self/exe", &program) < 0 || cell__file_read(AT_FDCWD, "/proc/self/cgroup", 0, MAX_CGROUP_BYTES, &groups, NULL) < 0)
		return false;
	EVP_DigestUpdate(hash, &program.st_dev, sizeof(program.st_dev));
	EVP_DigestUpdate(hash, &program.st_ino, sizeof(program.st_ino));
	EVP_DigestUpdate(hash, &program.st_mtim, sizeof(program.st_mtim));
	EVP_DigestUpdate(hash, groups.data, groups.size);
	return true;
}

static bool name_spare(const struct cell_cli_notebook *notebook, char *ret_name, size_t size)
{
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	unsigned char digest[EVP_MAX_MD_SIZE];
	char text[HASH_CHARS + 1];
	bool made = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1;

	if (made) {
		hash_start(hash, notebook);
		made = hash_program(hash) && EVP_DigestFinal_ex(hash, digest, NULL) == 1;
	}
	EVP_MD_CTX_free(hash);
	for (size_t i = 0; made && i < HASH_CHARS / 2; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	if (made)
		snprintf(ret_name, size, "workcell-spare-%s", text);
	return made;
}

/*
 * Where the sockets of spares are, made where it is missing: $XDG_RUNTIME_DIR/workcell, else ~/.cache/workcell/run. Not beside the connection
 * file, which may be in /tmp. -1: it cannot be made, or others could put a socket there.
 */
static int open_folder(void)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	CELL_AUTO_FREE char *path = NULL;
	CELL_AUTO_FD int fd = -1;
	struct cell_error err;
	struct stat status;

	if ((runtime && *runtime == '/' ? asprintf(&path, "%s/workcell", runtime)
					: asprintf(&path, "%s/.cache/workcell/run", cell__home_dir())) < 0)
		path = NULL;
	if (!path || cell__cli_make_folders(path, 0700, &err) < 0)
		return -1;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &status) < 0 || status.st_uid != geteuid() || (status.st_mode & 022))
		return -1;
	return cell__take_fd(&fd);
}

/* By way of the descriptor: the folder's path may be too long for a socket's. */
static struct sockaddr_un address_of(int folder_fd, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", folder_fd, name);
	return address;
}

/* ---- who speaks ----------------------------------------------------------------------- */

static bool same_namespace(pid_t pid, const char *name)
{
	char path[64], own[64] = "", other[64] = "";

	snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
	if (readlink(path, own, sizeof(own) - 1) < 0)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, name);
	return readlink(path, other, sizeof(other) - 1) > 0 && !strcmp(own, other);
}

static bool is_ours(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid() && peer.pid > 0 &&
	       same_namespace(peer.pid, "user") && same_namespace(peer.pid, "mnt") && same_namespace(peer.pid, "pid") &&
	       same_namespace(peer.pid, "net");
}

static bool send_message(int fd, int type, int value)
{
	struct message message = { type, value };

	return send(fd, &message, sizeof(message), MSG_NOSIGNAL) == (ssize_t)sizeof(message);
}

/* False: not in time, the other side is gone, or it said something else. */
static bool await_message(int fd, int type, int timeout_ms)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	struct message message;

	return poll(&one, 1, timeout_ms) == 1 && recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message) && message.type == type;
}

/* ---- the kernel that Jupyter starts ------------------------------------------------------ */

static bool send_handover(int fd, const char *connection_file)
{
	CELL_AUTO_FD int cwd_fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct handover handover = { .version = SPARE_VERSION };
	int fds[FDS] = { cwd_fd, STDOUT_FILENO, STDERR_FILENO };
	union {
		char room[CMSG_SPACE(sizeof(fds))];
		struct cmsghdr head;
	} control = { 0 };
	struct iovec part = { &handover, sizeof(handover) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	if (cwd_fd < 0 || strlen(connection_file) >= sizeof(handover.connection_file))
		return false;
	snprintf(handover.connection_file, sizeof(handover.connection_file), "%s", connection_file);
	control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(fds)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
	return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(handover);
}

/* A socket to a spare that is ready; -1: there is none. */
static int find_spare(const struct cell_cli_notebook *notebook)
{
	CELL_AUTO_FD int folder_fd = open_folder();
	CELL_AUTO_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	char name[64];

	if (folder_fd < 0 || fd < 0 || !name_spare(notebook, name, sizeof(name)))
		return -1;
	address = address_of(folder_fd, name);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		if (errno == ECONNREFUSED)
			unlinkat(folder_fd, name, 0); /* of a spare that was killed */
		return -1;
	}
	if (!is_ours(fd) || !send_handover(fd, notebook->connection_file) || !await_message(fd, READY, HANDOVER_MS) ||
	    !send_message(fd, GO, 0))
		return -1;
	return cell__take_fd(&fd);
}

bool cell__cli_spare_use(const struct cell_cli_notebook *notebook, int *ret_status)
{
	CELL_AUTO_FD int fd = notebook->keep_ms > 0 && getenv("JPY_PARENT_PID") ? find_spare(notebook) : -1;
	CELL_AUTO_FD int signals_fd = -1;
	struct signalfd_siginfo info;
	struct message message;
	sigset_t set;

	if (fd < 0)
		return false;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals_fd = signalfd(-1, &set, SFD_CLOEXEC);
	*ret_status = 1; /* of a spare that dies */
	for (;;) {
		struct pollfd both[] = { { .fd = fd, .events = POLLIN }, { .fd = signals_fd, .events = POLLIN } };

		if (poll(both, 2, -1) < 0 && errno != EINTR)
			return true;
		if (both[1].revents && read(signals_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
			send_message(fd, SIGNAL, (int)info.ssi_signo);
		if (!both[0].revents)
			continue;
		if (recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message) && message.type == ENDED)
			*ret_status = message.value;
		return true;
	}
}

/* ---- a kernel with a spare ------------------------------------------------------------------ */

int cell__cli_spare_start(const struct cell_cli_notebook *notebook)
{
	CELL_AUTO_FREE char **argv = calloc((size_t)notebook->argc + 2, sizeof(*argv));
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t set;
	pid_t pid = -1;

	if (notebook->keep_ms <= 0 || !getenv("JPY_PARENT_PID") || !argv)
		return -1;
	argv[0] = (char *)"workcell";
	for (int i = 0; i < notebook->argc; i++)
		argv[i + 1] = notebook->argv[i] == notebook->verb ? (char *)"spare" : notebook->argv[i];
	sigemptyset(&set);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &set);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	if (posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv, notebook->env))
		pid = -1; /* the next kernel starts as this one did */
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	return pid;
}

bool cell__cli_spare_hear(int owner_fd)
{
	struct message message;
	ssize_t n = recv(owner_fd, &message, sizeof(message), MSG_DONTWAIT);

	if (n == (ssize_t)sizeof(message) && message.type == SIGNAL &&
	    (message.value == SIGINT || message.value == SIGTERM || message.value == SIGHUP))
		kill(getpid(), message.value);
	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void cell__cli_spare_tell_end(int owner_fd, int status)
{
	if (owner_fd >= 0)
		(void)send_message(owner_fd, ENDED, status);
}

/* ---- the spare -------------------------------------------------------------------------------- */

static bool receive_handover(int fd, struct handover *ret_handover, int ret_fds[FDS])
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	union {
		char room[CMSG_SPACE(FDS * sizeof(int))];
		struct cmsghdr head;
	} control = { 0 };
	struct iovec part = { ret_handover, sizeof(*ret_handover) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	struct cmsghdr *head;
	ssize_t n = poll(&one, 1, HANDOVER_MS) == 1 ? recvmsg(fd, &message, MSG_CMSG_CLOEXEC) : -1;

	head = n >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (!head || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(FDS * sizeof(int)))
		return false;
	memcpy(ret_fds, CMSG_DATA(head), FDS * sizeof(int));
	return n == (ssize_t)sizeof(*ret_handover) && ret_handover->version == SPARE_VERSION &&
	       memchr(ret_handover->connection_file, '\0', sizeof(ret_handover->connection_file));
}

/* The socket of a kernel that has handed over; -1: it has not, and was refused. */
static int take_over(int listen_fd, struct handover *ret_handover)
{
	CELL_AUTO_FD int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	int fds[FDS] = { -1, -1, -1 };
	bool taken = fd >= 0 && is_ours(fd) && receive_handover(fd, ret_handover, fds) && send_message(fd, READY, 0) &&
		     await_message(fd, GO, HANDOVER_MS) && fchdir(fds[FD_CWD]) == 0 && dup2(fds[FD_OUT], STDOUT_FILENO) >= 0 &&
		     dup2(fds[FD_ERR], STDERR_FILENO) >= 0;

	for (int i = 0; i < FDS; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	return taken ? cell__take_fd(&fd) : -1;
}

/*
 * -1: there is a spare of this name, or the folder cannot be used. The name appears when somebody listens there: a kernel removes a name that
 * refuses it.
 */
static int listen_in(int folder_fd, const char *name)
{
	CELL_AUTO_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char early[64];
	struct sockaddr_un address;
	mode_t old = umask(0177);
	bool bound;

	snprintf(early, sizeof(early), ".spare-%d", (int)getpid());
	address = address_of(folder_fd, early);
	unlinkat(folder_fd, early, 0); /* of an earlier process of this pid */
	bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
	umask(old);
	if (!bound)
		return -1;
	if (listen(fd, 1) < 0 || renameat2(folder_fd, early, folder_fd, name, RENAME_NOREPLACE) < 0) {
		unlinkat(folder_fd, early, 0);
		return -1;
	}
	return cell__take_fd(&fd);
}

/* Until a kernel hands over, the server ends, or time is over: -1. */
static int wait_for_kernel(int listen_fd, int64_t keep_ms, struct handover *ret_handover)
{
	pid_t server = (pid_t)strtol(getenv("JPY_PARENT_PID"), NULL, 10);
	CELL_AUTO_FD int server_fd = server > 1 ? (int)syscall(SYS_pidfd_open, server, 0) : -1;
	int64_t until_ms = cell__now_us() / 1000 + keep_ms;
	int fd = -1;

	while (server_fd >= 0 && fd < 0) {
		struct pollfd both[] = { { .fd = listen_fd, .events = POLLIN }, { .fd = server_fd, .events = POLLIN } };
		int64_t left_ms = until_ms - cell__now_us() / 1000;

		if (left_ms <= 0 || (poll(both, 2, left_ms > INT_MAX ? INT_MAX : (int)left_ms) < 0 && errno != EINTR) || both[1].revents)
			break;
		if (both[0].revents)
			fd = take_over(listen_fd, ret_handover);
	}
	return fd;
}

int cell__cli_spare_serve(const struct cell_cli_notebook *notebook)
{
	CELL_AUTO_FD int folder_fd = open_folder(), listen_fd = -1, owner_fd = -1;
	struct cell_cli_notebook served = *notebook;
	struct cell_engine *engine = NULL;
	struct handover handover;
	struct cell_error err;
	char name[64];

	if (folder_fd < 0 || notebook->keep_ms <= 0 || !getenv("JPY_PARENT_PID") || !name_spare(notebook, name, sizeof(name)))
		return 2;
	listen_fd = listen_in(folder_fd, name);
	if (listen_fd < 0)
		return 0;
	/* No folder of the user's stays in use while it waits. */
	if (cell__library_load(CELL__LIBRARY_ZMQ, &err) == 0 && cell__cli_warm(notebook->flags, &engine, &err) == 0 && chdir("/") == 0)
		owner_fd = wait_for_kernel(listen_fd, notebook->keep_ms, &handover);
	unlinkat(folder_fd, name, 0);
	cell__close_fd(&listen_fd);
	if (owner_fd < 0) {
		cell_engine_destroy(engine);
		return 0;
	}
	served.connection_file = handover.connection_file;
	return cell__cli_jupyter_serve(&served, engine, owner_fd);
}
