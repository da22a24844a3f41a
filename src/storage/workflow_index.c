/*
 * Listing and searching workflows, by an index that is a cache.
 *
 * The index is updated before it is used: both folders are listed with the time, size and inode of each file, and only files that differ
 * from the index are read. A file whose time is so recent that a later write could have the same time is read again next time. An index
 * that cannot be used is rebuilt, and if it cannot be written it is kept in memory.
 *
 * Listing ten thousand files takes longer than searching them. So the folders are watched (inotify) from before they are listed, and while
 * no change was reported and no other process has changed the index, it is up to date. If they cannot be watched (loop/watch.h says when;
 * no watch left for this user) they are listed each time.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "storage/shared.h"
#include "storage/workflows.h"

#define FOLDER CELL__WORKFLOWS_FOLDER
#define OLD_FOLDER CELL__SKILLS_FOLDER
#define INDEX CELL__WORKFLOWS_INDEX
#define CACHE_FILE "search.sqlite"
#define VECTORS_FILE "vectors.sqlite"
#define INDEX_ID ".index"      /* the item whose stamp is that of INDEX; no workflow has such a name */
#define BATCH 256
#define OLD_BIT (INT64_C(1) << 62) /* in the inode's stamp of a file in skills/ */

/* ---- bringing the search index up to date ---- */

struct file {
	char name[CELL__STORE_WORKFLOW_NAME_BYTES + 1];
	bool old;           /* lies in skills/ */
	int64_t stamp[3];   /* time, size (low half) and hash of the entry (high half), inode */
};

struct files {
	struct file *list;
	size_t n, capacity;
	bool linked; /* one of them has another name, by which it can change unseen */
};

static uint64_t size_half(uint64_t stamp)
{
	return stamp & 0xffffffffu;
}

/* FNV-1a over the entry's content; 0 without an entry. */
static uint64_t hash_entry(json_t *entry)
{
	static const char *const keys[] = { "description", "created_at" };
	if (!json_is_object(entry))
		return 0;
	uint32_t hash = 2166136261u;
	for (size_t k = 0; k < 2; k++) {
		json_t *value = json_object_get(entry, keys[k]);
		const char *text = json_string_value(value);
		for (size_t i = 0; i < json_string_length(value); i++)
			hash = (hash ^ (unsigned char)text[i]) * 16777619u;
		hash = (hash ^ 0xff) * 16777619u;
	}
	return hash ? hash : 1;
}

static void stamp_file(const struct stat *st, int64_t stamp[static 3])
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	stamp[0] = cell__time_ns(&st->st_mtim);
	if (cell__time_ns(&now) - stamp[0] < CELL__RECENT_NS)
		stamp[0] = -1; /* differs from every file's time: it is read again */
	stamp[1] = (int64_t)size_half((uint64_t)st->st_size);
	stamp[2] = (int64_t)st->st_ino;
}

static int add_file(struct files *files, const char *name, size_t size, bool old, const struct stat *st)
{
	if (files->n == files->capacity) {
		size_t capacity = files->capacity ? files->capacity * 2 : 64;
		struct file *more = cell__realloc(files->list, capacity * sizeof *more);
		if (!more)
			return -1;
		files->list = more;
		files->capacity = capacity;
	}
	struct file *f = &files->list[files->n++];
	memcpy(f->name, name, size);
	f->name[size] = '\0';
	f->old = old;
	files->linked |= st->st_nlink > 1;
	f->stamp[0] = cell__time_ns(&st->st_mtim);
	f->stamp[1] = (int64_t)size_half((uint64_t)st->st_size);
	f->stamp[2] = (int64_t)st->st_ino ^ (old ? OLD_BIT : 0);
	return 0;
}

static int scan_folder(struct cell__store *store, bool old, struct files *files, struct cell_error *err)
{
	int fd = cell__dir_open(store->root_fd, old ? OLD_FOLDER : FOLDER, false);
	if (fd < 0)
		return errno == ENOENT ? 0 : cell__dir_fail(err, old ? OLD_FOLDER : FOLDER, errno);
	DIR *dir = fdopendir(fd);
	if (!dir) {
		int saved = errno;
		cell__close_fd(&fd);
		return cell_fail(err, CELL_E_IO, saved, "read folder %s", old ? OLD_FOLDER : FOLDER);
	}
	int rc = 0;
	for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
		size_t size = strlen(entry->d_name);
		struct stat st;
		char name[CELL__STORE_WORKFLOW_NAME_BYTES + 1];
		cell__temp_sweep_one(fd, entry->d_name);
		if (size < 4 || size - 3 >= sizeof name || strcmp(entry->d_name + size - 3, ".py") != 0)
			continue;
		memcpy(name, entry->d_name, size - 3);
		name[size - 3] = '\0';
		if (cell__workflow_check_name(name, NULL) < 0 || fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		if (files->n >= CELL__STORE_LIST)
			rc = cell_fail(err, CELL_E_LIMIT, 0, "more than %u workflows", CELL__STORE_LIST);
		else if (add_file(files, name, size - 3, old, &st) < 0)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "list workflows");
	}
	closedir(dir);
	return rc;
}

/* Of two with one name the one in workflows/ comes first. */
static int compare_files(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : x->old - y->old;
}

static int scan_folders(struct cell__store *store, struct files *files, struct cell_error *err)
{
	if (scan_folder(store, false, files, err) < 0 || scan_folder(store, true, files, err) < 0)
		return -1;
	if (files->n > 0)
		qsort(files->list, files->n, sizeof *files->list, compare_files);
	size_t kept = 0;
	for (size_t i = 0; i < files->n; i++)
		if (kept == 0 || strcmp(files->list[kept - 1].name, files->list[i].name) != 0)
			files->list[kept++] = files->list[i];
	files->n = kept;
	return 0;
}

void cell__workflow_doc_finish(struct cell__workflow_doc *made)
{
	cell__buf_finish(&made->source);
	cell__buf_finish(&made->params);
	cell__py_source_finish(&made->parsed);
	free(made->description);
	free(made->docs);
	free(made->payload);
}

static json_t *make_problem(const char *name, const char *message)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (cell__buf_add_utf8(&clean, message, strlen(message)) < 0)
		return NULL;
	return json_pack("{s:s, s:s}", "name", name, "message", clean.data ? clean.data : "");
}

static int fill_texts(struct cell__workflow_doc *made, const char *name, json_t *info)
{
	struct cell__buf docs = CELL_BUF_INIT;
	int rc = 0;
	for (size_t i = 0; i < made->parsed.n_params; i++)
		rc |= cell__buf_printf(&made->params, "%s ", made->parsed.params[i].name);
	rc |= cell__buf_printf(&docs, "%s\n%s", made->parsed.docstring ? made->parsed.docstring : "",
			       made->parsed.run_docstring ? made->parsed.run_docstring : "");
	made->docs = cell__buf_take(&docs);
	made->description = cell__strdup(json_string_value(json_object_get(info, "description")));
	made->doc.name = name;
	made->doc.description = made->description;
	made->doc.params = made->params.data;
	made->doc.extra = made->docs;
	made->doc.body = made->source.data;
	return rc < 0 || !made->docs || !made->description ? -1 : 0;
}

int cell__workflow_doc_make(struct cell__workflow_doc *made, const char *name, json_t *entry, const struct timespec *when, bool old,
			    const struct cell_error *why)
{
	struct cell_error problem = { 0 };
	json_t *info = NULL;
	if (why)
		problem = *why;
	else if (cell__py_scan(made->source.data, made->source.size, &made->parsed, &problem) == 0)
		info = cell__workflow_info(name, &made->parsed, entry, when);
	if (info && fill_texts(made, name, info) < 0) {
		json_decref(info);
		return -1;
	}
	if (!info)
		info = make_problem(name, problem.msg);
	if (info && old)
		json_object_set_new(info, "old", json_true());
	made->payload = info ? json_dumps(info, JSON_COMPACT) : NULL;
	json_decref(info);
	made->doc.payload = made->payload;
	return made->payload ? 0 : -1;
}

/* Reads one file anew. */
static int make_doc(const int folders[2], const struct file *file, json_t *entry, struct cell__workflow_doc *made)
{
	char path[CELL__WORKFLOW_FILE_SIZE];
	struct stat st = { 0 };
	struct cell_error why = { 0 };
	cell__workflow_file(file->name, path);
	made->doc = (struct cell__search_doc){ .id = file->name, .name = "" };
	memcpy(made->doc.stamp, file->stamp, sizeof file->stamp);
	if (cell__path_read(folders[file->old], path, CELL__STORE_SOURCE_BYTES, &made->source, &st) < 0) {
		cell__workflow_fail_read(&why, file->name, errno);
	} else {
		stamp_file(&st, made->doc.stamp);
		made->doc.stamp[2] ^= file->old ? OLD_BIT : 0;
	}
	made->doc.stamp[1] |= (int64_t)(hash_entry(entry) << 32);
	return cell__workflow_doc_make(made, file->name, entry, &st.st_mtim, file->old, why.code ? &why : NULL);
}

struct refresh {
	struct cell__store *store;
	struct files files;
	json_t *index;           /* NULL: descriptions are as they were */
	int64_t index_stamp[3];
	int folders[2];
	const struct file **changed;
	const char **removed;
	size_t n_changed, n_removed;
};

static bool is_fresh(const struct refresh *r, const struct file *file, const struct cell__search_stamp *stamp)
{
	if (file->stamp[0] != stamp->stamp[0] || file->stamp[2] != stamp->stamp[2] ||
	    file->stamp[1] != (int64_t)size_half((uint64_t)stamp->stamp[1]))
		return false;
	json_t *entry = file->old ? NULL : json_object_get(r->index, file->name);
	return !r->index || hash_entry(entry) == (uint64_t)stamp->stamp[1] >> 32;
}

/* Both lists are sorted. */
static int compare(struct refresh *r)
{
	struct cell__store *store = r->store;
	r->changed = cell__alloc(r->files.n, sizeof *r->changed);
	r->removed = cell__alloc(store->n_stamps, sizeof *r->removed);
	if (!r->changed || !r->removed)
		return -1;
	size_t k = 0;
	for (size_t i = 0; i < r->files.n; i++) {
		const struct file *file = &r->files.list[i];
		int order = -1;
		while (k < store->n_stamps && (order = strcmp(store->stamps[k].id, file->name)) < 0) {
			if (strcmp(store->stamps[k].id, INDEX_ID) != 0)
				r->removed[r->n_removed++] = store->stamps[k].id;
			k++;
		}
		bool known = k < store->n_stamps && order == 0;
		if (!known || !is_fresh(r, file, &store->stamps[k]))
			r->changed[r->n_changed++] = file;
		k += known;
	}
	for (; k < store->n_stamps; k++)
		if (strcmp(store->stamps[k].id, INDEX_ID) != 0)
			r->removed[r->n_removed++] = store->stamps[k].id;
	return 0;
}

/* Reads .workflows.json if it differs from the one that the index was made with. */
static int check_index(struct refresh *r, struct cell_error *err)
{
	struct stat st = { 0 };
	const struct cell__search_stamp *known = NULL;
	for (size_t i = 0; i < r->store->n_stamps && !known; i++)
		if (strcmp(r->store->stamps[i].id, INDEX_ID) == 0)
			known = &r->store->stamps[i];
	int fd = r->folders[0];
	if (fd >= 0 && fstatat(fd, INDEX, &st, AT_SYMLINK_NOFOLLOW) == 0)
		stamp_file(&st, r->index_stamp);
	if (known && memcmp(known->stamp, r->index_stamp, sizeof r->index_stamp) == 0 && known->stamp[0] != -1)
		return 0;
	if (fd < 0 || cell__index_read(fd, INDEX, &r->store->workflows, &r->index, NULL) < 0)
		r->index = json_object();
	return r->index ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "read workflows");
}

static json_t *entry_of(const struct refresh *r, json_t **index, const char *name)
{
	/* An index that has not changed is only needed when a file has. */
	if (!*index && (r->folders[0] < 0 || cell__index_read(r->folders[0], INDEX, &r->store->workflows, index, NULL) < 0))
		*index = json_object();
	return json_object_get(*index, name);
}

static int write_batch(struct refresh *r, size_t from, json_t **index, struct cell_error *err)
{
	struct cell__workflow_doc *made = cell__alloc(BATCH, sizeof *made);
	struct cell__search_doc docs[BATCH + 1];
	size_t n = 0;
	if (!made)
		return cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	int rc = 0;
	while (rc == 0 && n < BATCH && from + n < r->n_changed) {
		const struct file *file = r->changed[from + n];
		json_t *entry = file->old ? NULL : entry_of(r, index, file->name);
		rc = make_doc(r->folders, file, entry, &made[n]);
		docs[n] = made[n].doc;
		n++;
	}
	size_t n_docs = n;
	if (from + n == r->n_changed && r->index) {
		docs[n_docs] = (struct cell__search_doc){ .id = INDEX_ID, .name = "" };
		memcpy(docs[n_docs++].stamp, r->index_stamp, sizeof r->index_stamp);
	}
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	else
		rc = cell__search_update(r->store->search, docs, n_docs, r->removed, from == 0 ? r->n_removed : 0, err);
	for (size_t i = 0; i < n; i++)
		cell__workflow_doc_finish(&made[i]);
	free(made);
	return rc;
}

int cell__workflow_load_stamps(struct cell__store *store, struct cell_error *err)
{
	struct cell__search_stamp *stamps;
	size_t n;
	if (cell__search_stamps(store->search, &stamps, &n, err) < 0)
		return -1;
	cell__search_stamps_free(store->stamps, store->n_stamps);
	store->stamps = stamps;
	store->n_stamps = n;
	return 0;
}

static int write_changes(struct refresh *r, struct cell_error *err)
{
	json_t *index = json_incref(r->index);
	int rc = 0;
	size_t from = 0;
	do {
		rc = write_batch(r, from, &index, err);
		from += BATCH;
	} while (rc == 0 && from < r->n_changed);
	json_decref(index);
	return rc == 0 ? cell__workflow_load_stamps(r->store, err) : -1;
}

/* ---- watching ---- */

/* Files of the folders, and the folders as names of the root. */
static bool matters(const char *name)
{
	size_t size = strlen(name);
	return (size > 3 && strcmp(name + size - 3, ".py") == 0) || strcmp(name, INDEX) == 0 || strcmp(name, FOLDER) == 0 ||
	       strcmp(name, OLD_FOLDER) == 0;
}

/* Restarts watching, before the folders are listed. */
static void watch(struct cell__store *store, const int folders[2])
{
	/* The root's own watch reports when one of the two is added or removed. */
	if (cell__watch_begin(&store->watch) < 0 || cell__watch_folder(&store->watch, store->root_fd) < 0)
		return;
	for (int i = 0; i < 2; i++)
		if (folders[i] >= 0 && cell__watch_folder(&store->watch, folders[i]) < 0)
			return;
}

int cell__workflow_refresh_files(struct cell__store *store, struct cell_error *err)
{
	struct refresh r = { .store = store };
	bool changed = cell__search_changed(store->search);
	if (!changed && cell__watch_quiet(&store->watch, matters))
		return 0;
	if (changed && cell__workflow_load_stamps(store, err) < 0)
		return -1;
	r.folders[0] = cell__dir_open(store->root_fd, FOLDER, false);
	r.folders[1] = cell__dir_open(store->root_fd, OLD_FOLDER, false);
	watch(store, r.folders);
	int rc = check_index(&r, err);
	if (rc == 0)
		rc = scan_folders(store, &r.files, err);
	if (rc == 0 && compare(&r) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "index workflows");
	if (rc == 0 && (r.n_changed > 0 || r.n_removed > 0 || r.index))
		rc = write_changes(&r, err);
	if (rc < 0 || r.files.linked)
		cell__watch_end(&store->watch);
	cell__close_fd(&r.folders[0]);
	cell__close_fd(&r.folders[1]);
	json_decref(r.index);
	free(r.files.list);
	free(r.changed);
	free(r.removed);
	return rc;
}

/* ---- opening the index ---- */

/* Without symbolic links, which SQLite is told to refuse. */
int cell__store_cache_path(struct cell__store *store, const char *name, char *out)
{
	size_t size = strlen(name) + 1;
	bool shared;
	CELL_AUTO_FD int fd = cell__shared_open_cache(store, &shared);
	char link[64];
	if (fd < 0)
		return -1;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, out, PATH_MAX - size - 1);
	if (n <= 0 || (size_t)n == PATH_MAX - size - 1 || out[0] != '/')
		return -1;
	out[n] = '/';
	memcpy(out + n + 1, name, size);
	return 0;
}

static void remove_cache(struct cell__store *store)
{
	bool shared;
	CELL_AUTO_FD int fd = cell__shared_open_cache(store, &shared);
	if (fd < 0)
		return;
	unlinkat(fd, CACHE_FILE, 0);
	unlinkat(fd, CACHE_FILE "-journal", 0);
}

void cell__store_close_search(struct cell__store *store)
{
	cell__watch_end(&store->watch);
	cell__search_close(store->search);
	store->search = NULL;
	cell__search_stamps_free(store->stamps, store->n_stamps);
	store->stamps = NULL;
	store->n_stamps = 0;
}

/* In a file of its own beside the index: words are cheap to index again, vectors are not. */
static int add_vectors(struct cell__store *store, struct cell_error *err)
{
	char path[PATH_MAX];
	if (!store->model || cell__search_has_vectors(store->search))
		return 0;
	bool cached = cell__store_cache_path(store, VECTORS_FILE, path) == 0;
	return cell__search_add_vectors(store->search, cached ? path : NULL, store->model, err);
}

/* With search_lock held. First the existing file, then a new one, then in memory: the first two may fail for any reason. */
static int open_fresh(struct cell__store *store, int first_try, struct cell_error *err)
{
	CELL_AUTO_FD int host = -1;
	if (cell__shared_open(store, &host, err) < 0)
		return -1;
	if (store->search && store->search_shared != (host >= 0)) /* a container can write to it since */
		cell__store_close_search(store);
	store->search_shared = host >= 0;
	for (int try = first_try; try < 3; try++) {
		char path[PATH_MAX];
		if (try > 0)
			cell__store_close_search(store);
		if (try == 1)
			remove_cache(store);
		if (try < 2 && !store->search && cell__store_cache_path(store, CACHE_FILE, path) < 0)
			continue;
		if (!store->search && cell__search_open(try < 2 ? path : NULL, &store->search, err) < 0)
			continue;
		if (add_vectors(store, err) < 0)
			break;
		if (store->backend->workflows->refresh(store, err) == 0)
			return 0;
		if (store->unreadable)
			return -1;
		if (err && err->code == CELL_E_LIMIT)
			break;
	}
	cell__store_close_search(store);
	return -1;
}

/* ---- listing and searching ---- */

struct output {
	struct cell__store *store;
	json_t *list, *problems;
};

/* The description from a payload; *ret_problem if it is not a workflow. */
static json_t *tell(struct cell__store *store, const char *id, const char *payload, bool *ret_problem)
{
	json_t *info = payload ? json_loads(payload, 0, NULL) : NULL;
	if (!info)
		return NULL;
	bool old = json_object_get(info, "old") != NULL;
	json_object_del(info, "old");
	*ret_problem = json_object_get(info, "message") != NULL;
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (store->backend->workflows->path(store, id, old, &path) < 0) {
		json_decref(info);
		return NULL;
	}
	if (cell__utf8_ok(path.data, path.size))
		json_object_set_new(info, "path", json_string(path.data));
	return info;
}

static int list_one(void *arg, const char *id, const char *payload)
{
	struct output *out = arg;
	bool problem = false;
	if (strcmp(id, INDEX_ID) == 0)
		return 0;
	json_t *info = tell(out->store, id, payload, &problem);
	return info && json_array_append_new(problem ? out->problems : out->list, info) == 0 ? 0 : 1;
}

static int list_all(struct output *out, struct cell_error *err)
{
	int rc = cell__search_each(out->store->search, list_one, out, err);
	return rc > 0 ? cell_fail(err, CELL_E_NOMEM, 0, "list workflows") : rc;
}

int cell__workflow_list(struct cell__store *store, json_t **ret_list, json_t **ret_problems, struct cell_error *err)
{
	struct output out = { store, json_array(), json_array() };
	int rc = out.list && out.problems ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "list workflows");
	pthread_mutex_lock(&store->search_lock);
	if (rc == 0)
		rc = open_fresh(store, 0, err);
	if (rc == 0 && list_all(&out, err) < 0) {
		json_array_clear(out.list);
		json_array_clear(out.problems);
		rc = open_fresh(store, 1, err) < 0 ? -1 : list_all(&out, err);
	}
	pthread_mutex_unlock(&store->search_lock);
	if (rc == 0) {
		*ret_list = json_incref(out.list);
		if (ret_problems)
			*ret_problems = json_incref(out.problems);
	}
	json_decref(out.list);
	json_decref(out.problems);
	return rc;
}

static int add_hits(struct output *out, const struct cell__search_hit *hits, size_t n, struct cell_error *err)
{
	for (size_t i = 0; i < n; i++) {
		CELL_AUTO_FREE char *payload = NULL;
		bool problem = false;
		if (cell__search_payload(out->store->search, hits[i].id, &payload, err) < 0)
			return -1;
		json_t *info = payload ? tell(out->store, hits[i].id, payload, &problem) : NULL;
		if (!info || problem) {
			json_decref(info);
			continue;
		}
		json_object_set_new(info, "score", json_real(hits[i].score));
		if (json_array_append_new(out->list, info) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "search workflows");
	}
	return 0;
}

static int query(struct cell__search *search, const char *text, size_t limit, struct cell__meaning *meaning,
		 struct cell__search_hit **ret_hits, size_t *ret_n, struct cell_error *err)
{
	struct cell__vector_batch none = { 0 };
	if (meaning && cell__search_has_vectors(search))
		cell__search_vector_counts(search, &meaning->counts);
	if (!meaning || !meaning->vector || !cell__search_has_vectors(search))
		return cell__search_query(search, text, limit, ret_hits, ret_n, err);
	/* Fails without memory, and if the search itself will fail: then the vectors in memory are used. */
	if (cell__search_collect(search, 0, 0, &none, &meaning->missing, NULL) == 0)
		cell__vector_batch_finish(&none);
	cell__search_vector_counts(search, &meaning->counts);
	return cell__search_query_by(search, text, meaning->vector, meaning->dimensions, limit, ret_hits, ret_n, &meaning->fused, err);
}

static int search_all(struct output *out, const char *text, size_t limit, struct cell__meaning *meaning, struct cell_error *err)
{
	struct cell__search_hit *hits = NULL;
	size_t n = 0;
	if (query(out->store->search, text, limit, meaning, &hits, &n, err) < 0)
		return -1;
	int rc = add_hits(out, hits, n, err);
	cell__search_hits_free(hits, n);
	return rc;
}

int cell__workflow_search_by(struct cell__store *store, const char *text, size_t limit, struct cell__meaning *meaning, json_t **ret_list,
			     struct cell_error *err)
{
	struct output out = { store, json_array(), NULL };
	struct cell_error why = { 0 };
	if (!out.list)
		return cell_fail(err, CELL_E_NOMEM, 0, "search workflows");
	pthread_mutex_lock(&store->search_lock);
	int rc = open_fresh(store, 0, &why);
	if (rc == 0)
		rc = search_all(&out, text, limit, meaning, &why);
	/* A cache that was torn may show it only now; a query that is refused is refused by every index. */
	if (rc < 0 && why.code == CELL_E_IO && !store->unreadable) {
		json_array_clear(out.list);
		rc = open_fresh(store, 1, &why) < 0 ? -1 : search_all(&out, text, limit, meaning, &why);
	}
	pthread_mutex_unlock(&store->search_lock);
	if (rc == 0)
		*ret_list = json_incref(out.list);
	else if (err)
		*err = why;
	json_decref(out.list);
	return rc;
}

int cell__workflow_search(struct cell__store *store, const char *text, size_t limit, json_t **ret_list, struct cell_error *err)
{
	return cell__workflow_search_by(store, text, limit, NULL, ret_list, err);
}

/* ---- vectors ---- */

int cell__store_use_vectors(struct cell__store *store, const char *model, struct cell_error *err)
{
	char *copy = cell__strdup(model);
	if (!copy)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	pthread_mutex_lock(&store->search_lock);
	free(store->model);
	store->model = copy;
	pthread_mutex_unlock(&store->search_lock);
	return 0;
}

int cell__workflow_with_search(struct cell__store *store, int (*fn)(void *arg, struct cell__search *search, struct cell_error *err),
			       void *arg, struct cell_error *err)
{
	pthread_mutex_lock(&store->search_lock);
	int rc = store->search ? 0 : open_fresh(store, 0, err);
	if (rc == 0)
		rc = fn(arg, store->search, err);
	pthread_mutex_unlock(&store->search_lock);
	return rc;
}
