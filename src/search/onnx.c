/*
 * ONNX Runtime by dlopen(), so that nothing depends on it.  Its C interface is a table of functions (OrtApi) that only grows at its end: those used
 * here are of its first version, whose places its authors guarantee.
 */
#define _GNU_SOURCE
#include "search/onnx.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "search/wordpiece.h"

#define API_VERSION 1u
#define INT64_TENSOR 7  /* ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 */
#define FLOAT_TENSOR 1
#define LOG_ERROR 3     /* ORT_LOGGING_LEVEL_ERROR */
#define QUERY_PREFIX "Represent this sentence for searching relevant passages: "

/* Places in the table. */
enum {
	GET_ERROR_MESSAGE = 2,
	CREATE_ENV = 3,
	CREATE_SESSION = 7,
	RUN = 9,
	CREATE_SESSION_OPTIONS = 10,
	SET_GRAPH_OPTIMIZATION = 23,
	SET_INTRA_THREADS = 24,
	SET_INTER_THREADS = 25,
	SESSION_INPUT_COUNT = 30,
	CREATE_TENSOR = 49,
	TENSOR_DATA = 51,
	TENSOR_ELEMENT_TYPE = 60,
	DIMENSIONS_COUNT = 61,
	DIMENSIONS = 62,
	TENSOR_TYPE_AND_SHAPE = 65,
	CREATE_CPU_MEMORY_INFO = 69,
	RELEASE_ENV = 92,
	RELEASE_STATUS = 93,
	RELEASE_MEMORY_INFO = 94,
	RELEASE_SESSION = 95,
	RELEASE_VALUE = 96,
	RELEASE_SHAPE = 99,
	RELEASE_SESSION_OPTIONS = 100,
};

struct api_base {
	const void *const *(*get_api)(uint32_t version);
	const char *(*get_version)(void);
};

struct cell__onnx {
	char *folder;
	pthread_mutex_t lock; /* guards loading */
	bool loaded;
	void *library;
	const void *const *api;
	void *env, *session, *memory;
	size_t n_inputs;
	struct cell__wordpiece pieces;
};

#define CALL(model, place, type, ...) ((type)(uintptr_t)(model)->api[place])(__VA_ARGS__)
typedef void *(*status_1)(void *a);
typedef void *(*status_2)(void *a, void *b);
typedef void (*release)(void *object);

/* 0, or -1 with the runtime's words. */
static int check(const struct cell__onnx *model, void *status, const char *what, struct cell_error *err)
{
	typedef const char *(*message_of)(const void *status);

	if (!status)
		return 0;
	cell_fail(err, CELL_E_IO, 0, "%s: %.150s", what, CALL(model, GET_ERROR_MESSAGE, message_of, status));
	CALL(model, RELEASE_STATUS, release, status);
	return -1;
}

/* ---- loading ---- */

static int load_library(struct cell__onnx *model, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	const struct api_base *(*get_base)(void) = NULL;

	if (cell__buf_printf(&path, "%s/libonnxruntime.so", model->folder) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	model->library = dlopen(path.data, RTLD_NOW | RTLD_LOCAL);
	if (!model->library && access(path.data, F_OK) < 0)
		model->library = dlopen("libonnxruntime.so.1", RTLD_NOW | RTLD_LOCAL);
	if (model->library)
		*(void **)&get_base = dlsym(model->library, "OrtGetApiBase");
	model->api = get_base ? get_base()->get_api(API_VERSION) : NULL;
	if (model->api)
		return 0;
	return cell_fail(err, CELL_E_IO, 0, "ONNX Runtime is not usable: %.150s", model->library ? "it lacks OrtGetApiBase" : dlerror());
}

static int load_tokenizer(struct cell__onnx *model, struct cell_error *err)
{
	static const char *const names[] = { "tokenizer.json", "vocab.txt" };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int status = -1;

	for (size_t i = 0; i < 2 && status < 0; i++) {
		CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

		if (cell__buf_printf(&path, "%s/%s", model->folder, names[i]) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		status = cell__file_read(AT_FDCWD, path.data, 0, CELL__ONNX_TOKENIZER_BYTES, &text, NULL);
	}
	return status < 0 ? cell_fail(err, CELL_E_NOT_FOUND, errno, "no model in %.150s (see `workcell models`)", model->folder)
			  : cell__wordpiece_init(&model->pieces, text.data, text.size, err);
}

static int load_session(struct cell__onnx *model, struct cell_error *err)
{
	typedef void *(*create_env)(int level, const char *name, void **ret_env);
	typedef void *(*set_int)(void *options, int value);
	typedef void *(*create_session)(void *env, const char *path, void *options, void **ret_session);
	typedef void *(*memory_info)(int allocator, int type, void **ret_info);
	typedef void *(*count)(void *session, size_t *ret_count);
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	void *options = NULL;
	int status;

	if (cell__buf_printf(&path, "%s/model.onnx", model->folder) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	status = check(model, CALL(model, CREATE_ENV, create_env, LOG_ERROR, "workcell", &model->env), "ONNX Runtime", err);
	if (!status)
		status = check(model, CALL(model, CREATE_SESSION_OPTIONS, status_1, &options), "ONNX Runtime", err);
	/* One thread: a query is short, and the cores belong to sessions. */
	if (!status)
		status = check(model, CALL(model, SET_INTRA_THREADS, set_int, options, 1), "ONNX Runtime", err);
	if (!status)
		status = check(model, CALL(model, SET_INTER_THREADS, set_int, options, 1), "ONNX Runtime", err);
	if (!status)
		status = check(model, CALL(model, CREATE_SESSION, create_session, model->env, path.data, options, &model->session),
			       "the model", err);
	if (!status)
		status = check(model, CALL(model, SESSION_INPUT_COUNT, count, model->session, &model->n_inputs), "the model", err);
	if (!status)
		status = check(model, CALL(model, CREATE_CPU_MEMORY_INFO, memory_info, 1, 0, &model->memory), "ONNX Runtime", err);
	if (options)
		CALL(model, RELEASE_SESSION_OPTIONS, release, options);
	return status;
}

static void unload(struct cell__onnx *model)
{
	if (model->memory)
		CALL(model, RELEASE_MEMORY_INFO, release, model->memory);
	if (model->session)
		CALL(model, RELEASE_SESSION, release, model->session);
	if (model->env)
		CALL(model, RELEASE_ENV, release, model->env);
	model->memory = model->session = model->env = NULL;
	cell__wordpiece_finish(&model->pieces);
	/* The library stays: it has threads and thread-local data that dlclose() would pull away. */
	model->loaded = false;
}

static int load(struct cell__onnx *model, struct cell_error *err)
{
	int status = 0;

	pthread_mutex_lock(&model->lock);
	if (!model->loaded) {
		status = load_tokenizer(model, err) < 0 || (!model->api && load_library(model, err) < 0) || load_session(model, err) < 0
				 ? -1
				 : 0;
		if (status < 0)
			unload(model);
		else
			model->loaded = true;
	}
	pthread_mutex_unlock(&model->lock);
	return status;
}

const char *cell__onnx_folder(const char *url)
{
	size_t size = strlen(CELL__ONNX_SCHEME);

	return url && !strncmp(url, CELL__ONNX_SCHEME, size) ? url + size : NULL;
}

struct cell__onnx *cell__onnx_create(const char *folder)
{
	struct cell__onnx *model = cell__alloc(1, sizeof(*model));

	if (!model)
		return NULL;
	*model = (struct cell__onnx){ .folder = cell__strdup(folder) };
	if (!model->folder) {
		free(model);
		return NULL;
	}
	pthread_mutex_init(&model->lock, NULL);
	return model;
}

void cell__onnx_destroy(struct cell__onnx *model)
{
	if (!model)
		return;
	unload(model);
	pthread_mutex_destroy(&model->lock);
	free(model->folder);
	free(model);
}

/* ---- vectors ---- */

/* The first of the output's vectors, which stands for the whole text; scaled to length 1. */
static int take_vector(const struct cell__onnx *model, void *value, float **ret_vector, size_t *ret_dimensions, struct cell_error *err)
{
	typedef void *(*get_dims)(void *shape, int64_t *dims, size_t n);
	typedef void *(*get_count)(void *shape, size_t *ret_count);
	typedef void *(*get_type)(void *shape, int *ret_type);
	int64_t dims[3] = { 0 };
	size_t count = 0, n;
	float *data = NULL, *vector;
	double length = 0;
	void *shape = NULL;
	int type = 0, status = check(model, CALL(model, TENSOR_TYPE_AND_SHAPE, status_2, value, &shape), "the model", err);

	if (status < 0)
		return -1;
	status = check(model, CALL(model, DIMENSIONS_COUNT, get_count, shape, &count), "the model", err);
	if (!status)
		status = check(model, CALL(model, TENSOR_ELEMENT_TYPE, get_type, shape, &type), "the model", err);
	if (!status && (count < 2 || count > 3 || type != FLOAT_TENSOR))
		status = cell_fail(err, CELL_E_INVALID, 0, "the model does not give vectors of texts");
	if (!status)
		status = check(model, CALL(model, DIMENSIONS, get_dims, shape, dims, count), "the model", err);
	CALL(model, RELEASE_SHAPE, release, shape);
	if (!status &&
	    (dims[0] != 1 || dims[count - 1] < 1 || dims[count - 1] > (int64_t)CELL__ONNX_DIMENSIONS || (count == 3 && dims[1] < 1)))
		status = cell_fail(err, CELL_E_INVALID, 0, "the model does not give vectors of texts");
	if (!status)
		status = check(model, CALL(model, TENSOR_DATA, status_2, value, &data), "the model", err);
	if (status < 0)
		return -1;
	n = (size_t)dims[count - 1];
	vector = cell__alloc(n, sizeof(*vector));
	if (!vector)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (size_t i = 0; i < n; i++)
		length += (double)data[i] * (double)data[i];
	for (size_t i = 0; i < n; i++)
		vector[i] = length > 0 && isfinite(length) ? (float)(data[i] / sqrt(length)) : 0;
	*ret_vector = vector;
	*ret_dimensions = n;
	return 0;
}

static int run(const struct cell__onnx *model, int64_t *ids, size_t n, float **ret_vector, size_t *ret_dimensions, struct cell_error *err)
{
	typedef void *(*create_tensor)(void *memory, void *data, size_t bytes, const int64_t *shape, size_t n_dims, int type,
				       void **ret_value);
	typedef void *(*run_fn)(void *session, void *options, const char *const *inputs, void *const *values, size_t n_inputs,
				const char *const *outputs, size_t n_outputs, void **ret_values);
	static const char *const inputs[] = { "input_ids", "attention_mask", "token_type_ids" };
	static const char *const outputs[] = { "last_hidden_state" };
	int64_t ones[CELL__ONNX_TOKENS], zeros[CELL__ONNX_TOKENS] = { 0 }, shape[2] = { 1, (int64_t)n };
	int64_t *data[] = { ids, ones, zeros };
	void *values[3] = { NULL }, *output = NULL;
	size_t used = model->n_inputs < 3 ? model->n_inputs : 3;
	int status = 0;

	for (size_t i = 0; i < n; i++)
		ones[i] = 1;
	for (size_t i = 0; i < used && !status; i++)
		status = check(model,
			       CALL(model, CREATE_TENSOR, create_tensor, model->memory, data[i], n * sizeof(int64_t), shape, 2,
				    INT64_TENSOR, &values[i]),
			       "ONNX Runtime", err);
	if (!status)
		status = check(model, CALL(model, RUN, run_fn, model->session, NULL, inputs, values, used, outputs, 1, &output),
			       "the model", err);
	if (!status)
		status = take_vector(model, output, ret_vector, ret_dimensions, err);
	if (output)
		CALL(model, RELEASE_VALUE, release, output);
	for (size_t i = 0; i < used; i++) {
		if (values[i])
			CALL(model, RELEASE_VALUE, release, values[i]);
	}
	return status;
}

int cell__onnx_embed(struct cell__onnx *model, const char *text, bool is_query, float **ret_vector, size_t *ret_dimensions,
		     struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf whole = CELL_BUF_INIT;
	int64_t ids[CELL__ONNX_TOKENS];
	size_t n;

	if (load(model, err) < 0)
		return -1;
	if (cell__buf_add_str(&whole, is_query ? QUERY_PREFIX : "") < 0 || cell__buf_add_str(&whole, text) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	n = cell__wordpiece_encode(&model->pieces, whole.size ? whole.data : "", whole.size, ids, CELL__ONNX_TOKENS);
	return run(model, ids, n, ret_vector, ret_dimensions, err);
}
