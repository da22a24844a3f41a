/*
 * A function of a library that is loaded later is a jump to an address that cell__library_load() fills in.  Written in assembler, because
 * C cannot pass on the arguments of a function that takes any number of them.  The names are hidden: they are ours alone.
 *
 * meson.build defines the names of the files, for libraries that are not linked.
 */
#define _GNU_SOURCE
#include "base/libraries.h"

#include <dlfcn.h>
#include <pthread.h>

struct function {
	const char *name;
	void **at;
};

#if defined __x86_64__
#define JUMP(name) "\tendbr64\n\tjmp *cell__at_" name "(%rip)\n"
#elif defined __aarch64__
#define JUMP(name) "\thint #34\n\tadrp x16, cell__at_" name "\n\tldr x16, [x16, #:lo12:cell__at_" name "]\n\tbr x16\n"
#endif

#define DEFINE(name)                                                                                                  \
	extern void *cell__at_##name;                                                                                 \
	__attribute__((visibility("hidden"), used)) void *cell__at_##name;                                            \
	__asm__("\t.pushsection .text\n\t.globl " #name "\n\t.hidden " #name "\n\t.type " #name ", %function\n" #name \
		":\n" JUMP(#name) "\t.size " #name ", . - " #name "\n\t.popsection\n");
#define ROW(name) { #name, &cell__at_##name },

#ifdef CELL_LIBRARY_CURL
#define CURL_FUNCTIONS(X)           \
	X(curl_easy_cleanup)        \
	X(curl_easy_duphandle)      \
	X(curl_easy_getinfo)        \
	X(curl_easy_init)           \
	X(curl_easy_pause)          \
	X(curl_easy_perform)        \
	X(curl_easy_reset)          \
	X(curl_easy_setopt)         \
	X(curl_easy_strerror)       \
	X(curl_free)                \
	X(curl_global_init)         \
	X(curl_multi_add_handle)    \
	X(curl_multi_assign)        \
	X(curl_multi_cleanup)       \
	X(curl_multi_info_read)     \
	X(curl_multi_init)          \
	X(curl_multi_perform)       \
	X(curl_multi_poll)          \
	X(curl_multi_remove_handle) \
	X(curl_multi_setopt)        \
	X(curl_multi_socket_action) \
	X(curl_slist_append)        \
	X(curl_slist_free_all)      \
	X(curl_url)                 \
	X(curl_url_cleanup)         \
	X(curl_url_get)             \
	X(curl_url_set)
CURL_FUNCTIONS(DEFINE)
static const struct function curl_functions[] = { CURL_FUNCTIONS(ROW){ NULL, NULL } };
#endif

#ifdef CELL_LIBRARY_MICROHTTPD
#define MICROHTTPD_FUNCTIONS(X)              \
	X(MHD_add_connection)                \
	X(MHD_add_response_header)           \
	X(MHD_create_post_processor)         \
	X(MHD_create_response_from_buffer)   \
	X(MHD_create_response_from_callback) \
	X(MHD_destroy_post_processor)        \
	X(MHD_destroy_response)              \
	X(MHD_get_connection_info)           \
	X(MHD_get_connection_values)         \
	X(MHD_get_daemon_info)               \
	X(MHD_get_reason_phrase_for)         \
	X(MHD_get_response_header)           \
	X(MHD_get_timeout)                   \
	X(MHD_get_version)                   \
	X(MHD_lookup_connection_value)       \
	X(MHD_post_process)                  \
	X(MHD_queue_response)                \
	X(MHD_quiesce_daemon)                \
	X(MHD_resume_connection)             \
	X(MHD_run)                           \
	X(MHD_start_daemon)                  \
	X(MHD_stop_daemon)                   \
	X(MHD_suspend_connection)
MICROHTTPD_FUNCTIONS(DEFINE)
static const struct function microhttpd_functions[] = { MICROHTTPD_FUNCTIONS(ROW){ NULL, NULL } };
#endif

#ifdef CELL_LIBRARY_GNUTLS
#define GNUTLS_FUNCTIONS(X)                        \
	X(gnutls_certificate_allocate_credentials) \
	X(gnutls_certificate_free_credentials)     \
	X(gnutls_certificate_set_x509_key_mem)     \
	X(gnutls_pcert_deinit)                     \
	X(gnutls_pcert_list_import_x509_raw)       \
	X(gnutls_privkey_deinit)                   \
	X(gnutls_privkey_import_x509_raw)          \
	X(gnutls_privkey_init)                     \
	X(gnutls_record_send)                      \
	X(gnutls_strerror)
GNUTLS_FUNCTIONS(DEFINE)
static const struct function gnutls_functions[] = { GNUTLS_FUNCTIONS(ROW){ NULL, NULL } };
#endif

#ifdef CELL_LIBRARY_Z
#define ZLIB_FUNCTIONS(X) \
	X(inflate)        \
	X(inflateEnd)     \
	X(inflateInit2_)  \
	X(inflateReset)
ZLIB_FUNCTIONS(DEFINE)
static const struct function zlib_functions[] = { ZLIB_FUNCTIONS(ROW){ NULL, NULL } };
#endif

#ifdef CELL_LIBRARY_ZMQ
#define ZMQ_FUNCTIONS(X)  \
	X(zmq_bind)       \
	X(zmq_close)      \
	X(zmq_connect)    \
	X(zmq_ctx_new)    \
	X(zmq_ctx_set)    \
	X(zmq_ctx_term)   \
	X(zmq_getsockopt) \
	X(zmq_msg_close)  \
	X(zmq_msg_data)   \
	X(zmq_msg_init)   \
	X(zmq_msg_more)   \
	X(zmq_msg_recv)   \
	X(zmq_msg_send)   \
	X(zmq_msg_size)   \
	X(zmq_poll)       \
	X(zmq_send)       \
	X(zmq_setsockopt) \
	X(zmq_socket)     \
	X(zmq_strerror)
ZMQ_FUNCTIONS(DEFINE)
static const struct function zmq_functions[] = { ZMQ_FUNCTIONS(ROW){ NULL, NULL } };
#endif

#ifdef CELL_LIBRARY_EDIT
#define EDIT_FUNCTIONS(X) \
	X(el_cursor)      \
	X(el_deletestr)   \
	X(el_end)         \
	X(el_get)         \
	X(el_gets)        \
	X(el_init_fd)     \
	X(el_insertstr)   \
	X(el_line)        \
	X(el_push)        \
	X(el_resize)      \
	X(el_set)         \
	X(el_source)      \
	X(el_wgetc)       \
	X(el_winsertstr)  \
	X(el_wline)       \
	X(el_wset)        \
	X(history)        \
	X(history_end)    \
	X(history_init)
EDIT_FUNCTIONS(DEFINE)
static const struct function edit_functions[] = { EDIT_FUNCTIONS(ROW){ NULL, NULL } };
#endif

static const struct {
	const char *file; /* NULL: it is linked */
	const struct function *functions;
} libraries[CELL__LIBRARIES] = {
#ifdef CELL_LIBRARY_CURL
	[CELL__LIBRARY_CURL] = { CELL_LIBRARY_CURL, curl_functions },
#endif
#ifdef CELL_LIBRARY_MICROHTTPD
	[CELL__LIBRARY_MICROHTTPD] = { CELL_LIBRARY_MICROHTTPD, microhttpd_functions },
#endif
#ifdef CELL_LIBRARY_GNUTLS
	[CELL__LIBRARY_GNUTLS] = { CELL_LIBRARY_GNUTLS, gnutls_functions },
#endif
#ifdef CELL_LIBRARY_Z
	[CELL__LIBRARY_ZLIB] = { CELL_LIBRARY_Z, zlib_functions },
#endif
#ifdef CELL_LIBRARY_ZMQ
	[CELL__LIBRARY_ZMQ] = { CELL_LIBRARY_ZMQ, zmq_functions },
#endif
#ifdef CELL_LIBRARY_EDIT
	[CELL__LIBRARY_EDIT] = { CELL_LIBRARY_EDIT, edit_functions },
#endif
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded[CELL__LIBRARIES];

static int load(enum cell__library library, struct cell_error *err)
{
	const char *file = libraries[library].file;
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return cell_fail(err, CELL_E_IO, 0, "load %s: %s", file, dlerror());
	for (const struct function *f = libraries[library].functions; f->name; f++)
		if (!(*f->at = dlsym(handle, f->name)))
			return cell_fail(err, CELL_E_IO, 0, "%s lacks %s: install the version that Workcell was built with", file, f->name);
	loaded[library] = true;
	return 0;
}

int cell__library_load(enum cell__library library, struct cell_error *err)
{
	pthread_mutex_lock(&lock);
	int rc = loaded[library] || !libraries[library].file ? 0 : load(library, err);
	pthread_mutex_unlock(&lock);
	return rc;
}
