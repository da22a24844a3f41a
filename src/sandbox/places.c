#define _GNU_SOURCE
#include "sandbox/places.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hole.h"
#include "sandbox/mapped.h"

#define LINKS_MAX 40 /* as the kernel's own limit */
#define HOMES_MAX 1024

/* ---- the components of a path ---- */

struct walk {
	char real[PATH_MAX]; /* of the components walked so far; "" is the root */
	char rest[PATH_MAX]; /* components still to be walked */
	size_t n_points;
	bool missing; /* the next component does not exist: the rest is taken literally */
};

static int add_point(struct cell__place *place, struct walk *walk, const char *path)
{
	char **more = cell__realloc(place->points, (walk->n_points + 2) * sizeof *more);
	if (!more)
		return -1;
	place->points = more;
	more[walk->n_points] = cell__strdup(path);
	more[walk->n_points + 1] = NULL;
	return more[walk->n_points++] ? 0 : -1;
}

/* A link at walk->real + "/" + name.  0, or -1 with errno. */
static int follow(struct cell__place *place, struct walk *walk, const char *at)
{
	char target[PATH_MAX], rest[PATH_MAX];
	ssize_t n = readlink(at, target, sizeof target - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	if (walk->n_points >= LINKS_MAX) {
		errno = ELOOP;
		return -1;
	}
	if ((size_t)snprintf(rest, sizeof rest, "%s/%s", target, walk->rest) >= sizeof rest) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(walk->rest, rest, strlen(rest) + 1);
	if (target[0] == '/')
		walk->real[0] = '\0';
	if (add_point(place, walk, at) < 0) {
		errno = ENOMEM;
		return -1;
	}
	return 0;
}

/* Takes the next name off walk->rest; false: at the end. */
static bool next_name(struct walk *walk, char name[static NAME_MAX + 1], bool *ret_long)
{
	char *from = walk->rest + strspn(walk->rest, "/");
	size_t size = strcspn(from, "/");
	*ret_long = size > NAME_MAX;
	if (size == 0 || *ret_long)
		return false;
	memcpy(name, from, size);
	name[size] = '\0';
	memmove(walk->rest, from + size, strlen(from + size) + 1);
	return true;
}

static int walk_path(struct cell__place *place, const char *path)
{
	struct walk walk = { .real = "" };
	char name[NAME_MAX + 1], at[PATH_MAX];
	bool too_long = strlen(path) >= sizeof walk.rest;
	if (!too_long)
		memcpy(walk.rest, path, strlen(path) + 1);
	while (!too_long && next_name(&walk, name, &too_long)) {
		struct stat st;
		if (strcmp(name, ".") == 0)
			continue;
		if (strcmp(name, "..") == 0) {
			char *slash = strrchr(walk.real, '/');
			if (slash)
				*slash = '\0';
			continue;
		}
		too_long = (size_t)snprintf(at, sizeof at, "%s/%s", walk.real, name) >= sizeof at;
		if (too_long)
			break;
		walk.missing |= lstat(at, &st) < 0;
		if (!walk.missing && S_ISLNK(st.st_mode)) {
			if (follow(place, &walk, at) < 0)
				return -1;
			continue;
		}
		memcpy(walk.real, at, strlen(at) + 1);
	}
	if (too_long) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (add_point(place, &walk, walk.real[0] ? walk.real : "/") < 0) {
		errno = ENOMEM;
		return -1;
	}
	return 0;
}

static void place_finish(struct cell__place *place)
{
	cell__strings_free(place->points);
	free(place->path);
}

static char *absolute(const char *path)
{
	struct cell__buf out = CELL_BUF_INIT;
	CELL_AUTO_FREE char *here = path[0] == '/' ? NULL : get_current_dir_name();
	if ((path[0] != '/' && !here) || cell__buf_printf(&out, "%s%s%s", here ? here : "", here ? "/" : "", path) < 0)
		return NULL;
	return cell__buf_take(&out);
}

int cell__place_add(struct cell__place_list *list, const char *what, bool whole, const char *path, struct cell_error *err)
{
	if (!path)
		return 0;
	struct cell__place place = { .what = what, .whole = whole, .path = absolute(path) };
	struct cell__place *more = cell__realloc(list->items, (list->count + 1) * sizeof *more);
	if (more)
		list->items = more;
	if (!more || !place.path) {
		place_finish(&place);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	if (walk_path(&place, place.path) < 0) {
		cell_fail(err, CELL_E_INVALID, errno, "%s %.150s", what, path);
		place_finish(&place);
		return -1;
	}
	list->items[list->count++] = place;
	return 0;
}

int cell__place_add_unlinked(struct cell__place_list *list, const char *what, const char *path, struct cell_error *err)
{
	size_t count = list->count;
	int rc = cell__place_add(list, what, false, path, err);
	if (list->count > count)
		list->items[count].unlinked = true;
	return rc;
}

/* folder: what holds bin/python. */
static int add_prefix(struct cell__place_list *list, const char *folder, struct cell_error *err)
{
	static const char *const parts[] = { "bin", "lib", "lib64", "pyvenv.cfg" };
	char path[PATH_MAX];
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, parts[i]) < sizeof path &&
		    cell__place_add(list, "the interpreter's", true, path, err) < 0)
			return -1;
	return 0;
}

int cell__place_add_python(struct cell__place_list *list, const char *python, struct cell_error *err)
{
	char folders[2][PATH_MAX] = { "", "" };
	if (cell__place_add(list, "the interpreter", false, python, err) < 0)
		return -1;
	const struct cell__place *place = &list->items[list->count - 1];
	char *const *point = place->points;
	while (point[1])
		point++;
	snprintf(folders[0], PATH_MAX, "%s", place->path);
	snprintf(folders[1], PATH_MAX, "%s", *point);
	for (size_t i = 0; i < 2; i++) {
		for (int up = 0; up < 2; up++) {
			char *slash = strrchr(folders[i], '/');
			if (slash)
				*slash = '\0';
		}
		if ((i == 0 || strcmp(folders[0], folders[1]) != 0) && add_prefix(list, folders[i], err) < 0)
			return -1;
	}
	return 0;
}

static bool is_same(const struct cell__place *a, const struct cell__place *b)
{
	size_t i = 0;
	if (strcmp(a->what, b->what) != 0 || a->whole != b->whole || a->unlinked != b->unlinked || strcmp(a->path, b->path) != 0)
		return false;
	while (a->points[i] && b->points[i] && strcmp(a->points[i], b->points[i]) == 0)
		i++;
	return !a->points[i] && !b->points[i];
}

int cell__place_list_copy(const struct cell__place_list *list, struct cell__place_list *ret_copy, struct cell_error *err)
{
	struct cell__place_list copy = CELL_PLACE_LIST_INIT;
	copy.items = list->count ? cell__alloc(list->count, sizeof *copy.items) : NULL;
	bool fine = copy.items || list->count == 0;
	for (; fine && copy.count < list->count; copy.count++) {
		struct cell__place *place = &copy.items[copy.count];
		*place = list->items[copy.count];
		place->path = cell__strdup(place->path);
		place->points = cell__strings_copy((const char *const *)list->items[copy.count].points);
		fine = place->path && place->points;
	}
	if (fine) {
		*ret_copy = copy;
		return 0;
	}
	cell__place_list_finish(&copy);
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a list of places");
}

bool cell__place_list_equal(const struct cell__place_list *a, const struct cell__place_list *b)
{
	size_t i = 0;
	while (a->count == b->count && i < a->count && is_same(&a->items[i], &b->items[i]))
		i++;
	return a->count == b->count && i == a->count;
}

void cell__place_list_finish(struct cell__place_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		place_finish(&list->items[i]);
	free(list->items);
	*list = (struct cell__place_list)CELL_PLACE_LIST_INIT;
}

/* ---- files that no session may write to ---- */

/* Read and executed by the system, or by programs that any user starts. */
static const char *const of_the_system[] = {
	"/usr",
	"/bin",
	"/sbin",
	"/lib",
	"/lib32",
	"/lib64",
	"/libx32",
	"/etc",
	"/boot",
	"/efi",
	"/proc",
	"/sys",
	"/dev",
	"/run/systemd",
	"/run/udev",
	"/run/dbus",
	"/var/spool/cron",
	"/var/spool/at",
	"/var/spool/anacron",
	"/var/lib/systemd",
	"/var/lib/dpkg",
	"/var/lib/apt",
	"/var/lib/rpm",
	"/var/lib/dbus",
	"/var/lib/polkit-1",
	"/var/lib/snapd",
	"/snap",
};
/* Folders of folders with different owners. */
static const char *const shared[] = { "/", "/home", "/opt", "/srv", "/var", "/run", "/var/lib", "/var/spool", "/var/cache" };

/* In a home: files that the person's next login, shell, editor or Python reads or runs, and keys. */
static const char *const of_a_home[] = {
	"bin",      ".aws",   ".azure",   ".bashrc.d",  ".cargo",         ".config",    ".cursor",    ".docker",
	".emacs.d", ".gnupg", ".ipython", ".jupyter",   ".kube",          ".local/bin", ".local/lib", ".local/share",
	".mozilla", ".npm",   ".nvm",     ".oh-my-zsh", ".pki",           ".profile.d", ".pyenv",     ".rbenv",
	".rustup",  ".ssh",   ".vim",     ".vscode",    ".vscode-server", ".zshrc.d",   "go/bin",
};

static char *homes[HOMES_MAX + 1]; /* real paths; NULL-terminated */
static pthread_once_t homes_once = PTHREAD_ONCE_INIT;

static void add_home(const char *path)
{
	char real[PATH_MAX];
	size_t n = 0;
	/* Users that never log in have the root, or a folder that is not there. */
	if (!path || path[0] != '/' || !realpath(path, real) || strcmp(real, "/") == 0)
		return;
	for (; homes[n]; n++)
		if (strcmp(homes[n], real) == 0)
			return;
	if (n < HOMES_MAX)
		homes[n] = cell__strdup(real);
}

/* Of the users in /etc/passwd, and of ours, wherever that one is listed. */
static void find_homes(void)
{
	struct passwd entry, *found;
	char text[4096];
	FILE *file = fopen("/etc/passwd", "re");
	add_home(cell__home_dir());
	while (file && fgetpwent_r(file, &entry, text, sizeof text, &found) == 0 && found)
		add_home(found->pw_dir);
	if (file)
		fclose(file);
}

const char *cell__place_refusal(const char *path)
{
	char part[PATH_MAX];
	for (size_t i = 0; i < sizeof of_the_system / sizeof *of_the_system; i++)
		if (cell__path_is_under(path, of_the_system[i]) || cell__path_is_under(of_the_system[i], path))
			return "it is part of the system, or contains a part of it";
	for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
		if (strcmp(path, shared[i]) == 0)
			return "it contains other users' folders";
	if (is_hole("homes"))
		return NULL;
	pthread_once(&homes_once, find_homes);
	for (char **home = homes; *home; home++) {
		if (cell__path_is_under(*home, path))
			return "it is a home folder, or contains one";
		if (!cell__path_is_under(path, *home))
			continue;
		const char *below = path + strlen(*home) + 1;
		if (below[0] == '.' && !strchr(below, '/'))
			return "its owner's programs keep their settings there";
		for (size_t i = 0; i < sizeof of_a_home / sizeof *of_a_home; i++) {
			snprintf(part, sizeof part, "%s/%s", *home, of_a_home[i]);
			if (cell__path_is_under(path, part) || cell__path_is_under(part, path))
				return "its owner's programs run from there or keep their settings there";
		}
	}
	return NULL;
}

static int add_writable(struct cell__writable_list *list, const char *path, char *name, struct cell_error *err)
{
	struct cell__writable *more = cell__realloc(list->items, (list->count + 1) * sizeof *more);
	if (more)
		list->items = more;
	char *copy = more ? cell__strdup(path) : NULL;
	if (!copy || !name) {
		free(copy);
		free(name);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	}
	list->items[list->count++] = (struct cell__writable){ .path = copy, .name = name };
	return 0;
}

int cell__writable_init(struct cell__writable_list *list, const struct cell__sandbox_policy *policy, const char *workspace,
			struct cell_error *err)
{
	*list = (struct cell__writable_list)CELL_WRITABLE_LIST_INIT;
	if (policy->workspace == CELL_WORKSPACE_RW) {
		const char *why = cell__place_refusal(workspace);
		if (why) {
			return cell_fail(
				err, CELL_E_INVALID, 0,
				"%.80s cannot be a writable workspace: %s; use a separate folder as --cwd, or --workspace-mode ro or none",
				workspace, why);
		}
		if (add_writable(list, workspace, cell__strdup("the writable workspace"), err) < 0)
			return -1;
	}
	for (size_t i = 0; i < policy->write.count; i++) {
		char real[PATH_MAX];
		const char *path = realpath(policy->write.items[i], real) ? real : policy->write.items[i];
		const char *why = cell__place_refusal(path);
		struct cell__buf name = CELL_BUF_INIT;
		if (why) {
			cell_fail(err, CELL_E_INVALID, 0, "policy %.60s, line %d: %.70s cannot be writable: %s", policy->name,
				  policy->write.lines[i], policy->write.items[i], why);
			cell__writable_finish(list);
			return -1;
		}
		if (cell__buf_printf(&name, "the writable folder in line %d of the policy,", policy->write.lines[i]) < 0 ||
		    add_writable(list, path, cell__buf_take(&name), err) < 0) {
			cell__writable_finish(list);
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
		}
	}
	return 0;
}

struct more_names {
	struct cell__writable_list *list;
	size_t of; /* the item that is named */
	struct cell_error *err;
};

static int add_name(void *arg, const char *path)
{
	struct more_names *more = arg;
	const struct cell__writable *item = &more->list->items[more->of];
	const char *why = cell__place_refusal(path);
	struct cell__buf name = CELL_BUF_INIT;
	if (why)
		return cell_fail(more->err, CELL_E_INVALID, 0, "%s %.70s is also mounted at %.70s: %s", item->name, item->path, path, why);
	(void)cell__buf_printf(&name, "%s, also mounted at", item->name);
	return add_writable(more->list, path, cell__buf_take(&name), more->err);
}

/* A bind mount shows the same files under another name, by which something may be trusted. */
static int add_names(struct cell__writable_list *list, struct cell__mounts *mounts, struct cell_error *err)
{
	struct cell_error said = { 0 };
	struct more_names more = { .list = list, .err = &said };
	size_t count = list->count;
	for (; more.of < count && !is_hole("mounts"); more.of++) {
		if (mounts && cell__mounts_names(mounts, list->items[more.of].path, add_name, &more) == 0)
			continue;
		if (!said.code)
			return cell_fail(err, CELL_E_SANDBOX, errno, "find where %.120s is mounted", list->items[more.of].path);
		if (err)
			*err = said;
		return -1;
	}
	return 0;
}

int cell__writable_copy(const struct cell__writable_list *list, struct cell__writable_list *ret_copy, struct cell_error *err)
{
	*ret_copy = (struct cell__writable_list)CELL_WRITABLE_LIST_INIT;
	for (size_t i = 0; i < list->count; i++)
		if (add_writable(ret_copy, list->items[i].path, cell__strdup(list->items[i].name), err) < 0) {
			cell__writable_finish(ret_copy);
			return -1;
		}
	ret_copy->named = list->named;
	return 0;
}

void cell__writable_finish(struct cell__writable_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		free(list->items[i].path);
		free(list->items[i].name);
	}
	free(list->items);
	*list = (struct cell__writable_list)CELL_WRITABLE_LIST_INIT;
}

/* ---- one against the other ---- */

/* A path for a message, which has little room: its end is more informative than its beginning. */
#define SHOWN_BYTES 50
static const char *shown(const char *path, char out[static SHOWN_BYTES + 4])
{
	size_t size = strlen(path);
	snprintf(out, SHOWN_BYTES + 4, "%s%s", size > SHOWN_BYTES ? "..." : "", path + (size > SHOWN_BYTES ? size - SHOWN_BYTES : 0));
	return out;
}

static int check_pair(const struct cell__place *place, const struct cell__writable *writable, struct cell_error *err)
{
	const char *point = NULL;
	char a[SHOWN_BYTES + 4], b[SHOWN_BYTES + 4];
	bool holds = false;
	if (is_hole("places"))
		return 0;
	for (char **at = place->points; *at && !point; at++) {
		if (cell__path_is_under(*at, writable->path) && !(place->unlinked && !at[1]))
			point = *at;
		else if (place->whole && !at[1] && cell__path_is_under(writable->path, *at))
			holds = true;
	}
	if (holds)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "%s %s is inside %s %s, which the host trusts: use another --cwd, or --workspace-mode ro", writable->name,
				 shown(writable->path, a), place->what, shown(place->path, b));
	if (!point)
		return 0;
	if (place->unlinked)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "%s %s is reached through a link in %s %s, which the code could have created: remove the link, or "
				 "use another folder",
				 place->what, shown(place->path, a), writable->name, shown(writable->path, b));
	return cell_fail(err, CELL_E_INVALID, 0,
			 "the host trusts %s %s, but it is inside %s %s: move it, use another --cwd, or --workspace-mode ro", place->what,
			 shown(place->path, a), writable->name, shown(writable->path, b));
}

static int check_place(const struct cell__place *place, const struct cell__writable_list *writable, struct cell_error *err)
{
	for (size_t i = 0; i < writable->count; i++)
		if (check_pair(place, &writable->items[i], err) < 0)
			return -1;
	return 0;
}

int cell__places_check(const struct cell__place_list *trusted, struct cell__writable_list *writable, struct cell_error *err)
{
	struct cell__mounts *mounts = cell__mounts_create();
	int rc = add_names(writable, mounts, err);
	cell__mounts_destroy(mounts);
	if (rc < 0)
		return -1;
	for (size_t i = 0; i < trusted->count; i++)
		if (check_place(&trusted->items[i], writable, err) < 0)
			return -1;
	return 0;
}

/* ---- all of an engine ---- */

/* Spaces of one engine mostly trust the same places: each is kept once, so that opening a session checks few. */
struct trusted {
	struct cell__place place;
	unsigned refs;
	struct trusted *next;
};

struct cell__places {
	struct trusted *trusted;
	struct cell__writable_list *writable;
	pthread_mutex_t lock;        /* guards the mounts alone */
	struct cell__mounts *mounts; /* made when the first session needs to write */
};

struct cell__places *cell__places_create(void)
{
	struct cell__places *places = cell__alloc(1, sizeof *places);
	if (places)
		pthread_mutex_init(&places->lock, NULL);
	return places;
}

void cell__places_destroy(struct cell__places *places)
{
	while (places && places->trusted) {
		struct trusted *next = places->trusted->next;
		place_finish(&places->trusted->place);
		free(places->trusted);
		places->trusted = next;
	}
	if (places) {
		cell__mounts_destroy(places->mounts);
		pthread_mutex_destroy(&places->lock);
	}
	free(places);
}

static struct trusted **find(struct cell__places *places, const struct cell__place *place)
{
	struct trusted **at = &places->trusted;
	while (*at && !is_same(&(*at)->place, place))
		at = &(*at)->next;
	return at;
}

static int trust_one(struct cell__places *places, const struct cell__place *place, struct cell_error *err)
{
	struct trusted **at = find(places, place);
	if (*at) {
		(*at)->refs++;
		return 0;
	}
	for (const struct cell__writable_list *list = places->writable; list; list = list->next)
		if (check_place(place, list, err) < 0)
			return -1;
	struct trusted *made = cell__alloc(1, sizeof *made);
	struct walk counted = { .real = "" };
	bool ok = made != NULL;
	if (made)
		made->place = (struct cell__place){
			.what = place->what, .whole = place->whole, .unlinked = place->unlinked, .path = cell__strdup(place->path)
		};
	ok = ok && made->place.path;
	for (char **point = place->points; ok && *point; point++)
		ok = add_point(&made->place, &counted, *point) == 0;
	if (!ok) {
		if (made)
			place_finish(&made->place);
		free(made);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	made->refs = 1;
	made->next = places->trusted;
	places->trusted = made;
	return 0;
}

static void untrust(struct cell__places *places, const struct cell__place_list *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct trusted **at = find(places, &list->items[i]), *old = *at;
		if (!old || --old->refs > 0)
			continue;
		*at = old->next;
		place_finish(&old->place);
		free(old);
	}
}

int cell__places_trust(struct cell__places *places, const struct cell__place_list *list, struct cell_error *err)
{
	for (size_t i = 0; i < list->count; i++)
		if (trust_one(places, &list->items[i], err) < 0) {
			untrust(places, list, i);
			return -1;
		}
	return 0;
}

void cell__places_untrust(struct cell__places *places, const struct cell__place_list *list)
{
	untrust(places, list, list->count);
}

int cell__places_name(struct cell__places *places, struct cell__writable_list *list, struct cell_error *err)
{
	pthread_mutex_lock(&places->lock);
	if (!places->mounts)
		places->mounts = cell__mounts_create();
	int rc = add_names(list, places->mounts, err);
	pthread_mutex_unlock(&places->lock);
	list->named = rc == 0;
	return rc;
}

int cell__places_write(struct cell__places *places, struct cell__writable_list *list, struct cell_error *err)
{
	if (!list->named)
		return cell_fail(err, CELL_E_SANDBOX, 0, "the mounts of a sandbox's writable folders are not known");
	for (const struct trusted *at = places->trusted; at; at = at->next)
		if (check_place(&at->place, list, err) < 0)
			return -1;
	list->next = places->writable;
	list->held = true;
	places->writable = list;
	return 0;
}

const struct cell__writable_list *cell__places_writable(const struct cell__places *places)
{
	return places->writable;
}

void cell__places_unwrite(struct cell__places *places, struct cell__writable_list *list)
{
	if (!list->held)
		return;
	struct cell__writable_list **at = &places->writable;
	while (*at && *at != list)
		at = &(*at)->next;
	if (*at)
		*at = list->next;
	list->held = false;
}
