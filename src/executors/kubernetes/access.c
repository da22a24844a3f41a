/* How this program reaches the API server: from a kubeconfig, from files that are named, or as a pod of the cluster. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "executors/kubernetes/api.h"
#include "executors/kubernetes/pod.h"
#include "wire/yaml.h"

#define ACCOUNT "/var/run/secrets/kubernetes.io/serviceaccount/"
#define CLUSTER_URL "https://kubernetes.default.svc" /* in the certificate of every API server */
#define MAX_FILE_BYTES (256u << 10)
#define MIN_KEY_CHARS 32u

void cell__kube_access_finish(struct cell__kube_access *access)
{
	char *const secrets[] = { access->token, access->key, access->pool_key };

	for (size_t i = 0; i < sizeof(secrets) / sizeof(*secrets); i++) {
		if (secrets[i])
			explicit_bzero(secrets[i], strlen(secrets[i]));
		free(secrets[i]);
	}
	free(access->url);
	free(access->ca);
	free(access->cert);
	free(access->space);
	*access = (struct cell__kube_access){ 0 };
}

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

/* A file without the white space at its end. */
static int load(const char *what, const char *path, char **ret_text, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	/* The files of service accounts are symbolic links, which are replaced when the token rotates. */
	if (cell__file_load(what, path, 0, MAX_FILE_BYTES, &text, err) < 0)
		return -1;
	while (text.size && strchr(" \t\r\n", text.data[text.size - 1]))
		text.data[--text.size] = '\0';
	if (!text.size || strlen(text.data) != text.size)
		return cell_fail(err, CELL_E_INVALID, 0, "%s %.120s is empty or contains a NUL", what, path);
	*ret_text = cell__buf_take(&text);
	return 0;
}

/* ---- kubeconfig ---- */

/* The member `what` of the entry with that name, of a list of {"name", what}. */
static const json_t *entry_of(const json_t *root, const char *list, const char *name, const char *what)
{
	const json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(root, list), i, entry) {
		const char *has = text_of(entry, "name");

		if (has && name && !strcmp(has, name))
			return json_object_get(entry, what);
	}
	return NULL;
}

/* NAME-data in Base64, or the file NAME, beside the kubeconfig if it is relative. */
static int read_pem(const json_t *from, const char *folder, const char *name, char **ret_text, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, key = CELL_BUF_INIT, path = CELL_BUF_INIT;
	const char *file = text_of(from, name), *data;

	if (cell__buf_printf(&key, "%s-data", name) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	data = text_of(from, key.data);
	if (data && *data) {
		if (cell__buf_add_unbase64(&bytes, data, strlen(data)) < 0 || !bytes.size || strlen(bytes.data) != bytes.size)
			return cell_fail(err, CELL_E_INVALID, 0, "%s of the kubeconfig is not Base64 of a PEM text", key.data);
		*ret_text = cell__buf_take(&bytes);
		return 0;
	}
	if (!file || !*file)
		return 0;
	if (cell__buf_printf(&path, "%s%s%s", *file == '/' ? "" : folder, *file == '/' ? "" : "/", file) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return load("the kubeconfig's", path.data, ret_text, err);
}

/* What we would have to ignore, and what would make the connection less than it should be. */
static int check_kubeconfig(const json_t *cluster, const json_t *user, struct cell_error *err)
{
	static const char *const unsupported[] = { "exec", "auth-provider", "username", "as", "impersonate" };
	static const char *const of_cluster[] = { "proxy-url", "tls-server-name" };

	if (json_is_true(json_object_get(cluster, "insecure-skip-tls-verify")))
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"the kubeconfig has insecure-skip-tls-verify: the API server's certificate is always checked; give certificate-authority");
	for (size_t i = 0; i < sizeof(of_cluster) / sizeof(*of_cluster); i++)
		if (json_object_get(cluster, of_cluster[i]))
			return cell_fail(err, CELL_E_UNSUPPORTED, 0, "%s of a kubeconfig is not supported", of_cluster[i]);
	for (size_t i = 0; i < sizeof(unsupported) / sizeof(*unsupported); i++)
		if (json_object_get(user, unsupported[i]))
			return cell_fail(err, CELL_E_UNSUPPORTED, 0,
					 "\"%s\" of a kubeconfig's user is not supported: give a token, tokenFile or a client certificate",
					 unsupported[i]);
	return 0;
}

static int copy_text(const char *text, char **ret_copy, struct cell_error *err)
{
	if (text && !(*ret_copy = cell__strdup(text)))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return 0;
}

static int read_user(const json_t *user, const char *folder, struct cell__kube_access *access, struct cell_error *err)
{
	const char *file = text_of(user, "tokenFile");

	if (file && load("the token", file, &access->token, err) < 0)
		return -1;
	if (!file && copy_text(text_of(user, "token"), &access->token, err) < 0)
		return -1;
	return read_pem(user, folder, "client-certificate", &access->cert, err) < 0
		       ? -1
		       : read_pem(user, folder, "client-key", &access->key, err);
}

static int take_kubeconfig(const json_t *root, const json_t *config, const char *folder, struct cell__kube_access *access,
			   struct cell_error *err)
{
	const char *name = text_of(config, "context") ? text_of(config, "context") : text_of(root, "current-context");
	const json_t *context = entry_of(root, "contexts", name, "context");
	const json_t *cluster = entry_of(root, "clusters", text_of(context, "cluster"), "cluster");
	const json_t *user = entry_of(root, "users", text_of(context, "user"), "user");

	if (!context || !cluster || !user || !text_of(cluster, "server"))
		return cell_fail(err, CELL_E_INVALID, 0, "the kubeconfig has no context \"%.60s\" with a cluster, its server and a user",
				 name ? name : "");
	if (check_kubeconfig(cluster, user, err) < 0 || copy_text(text_of(cluster, "server"), &access->url, err) < 0 ||
	    (!access->space && copy_text(text_of(context, "namespace"), &access->space, err) < 0))
		return -1;
	return read_pem(cluster, folder, "certificate-authority", &access->ca, err) < 0 ? -1 : read_user(user, folder, access, err);
}

static int read_kubeconfig(const json_t *config, struct cell__kube_access *access, struct cell_error *err)
{
	const char *path = text_of(config, "kubeconfig");
	CELL_AUTO_FREE char *text = NULL, *folder = NULL;
	struct cell__problems problems = { 0 };
	struct cell__yaml *tree;
	json_t *root;
	int status;

	if (load("the kubeconfig", path, &text, err) < 0)
		return -1;
	folder = cell__strndup(path, (size_t)(strrchr(path, '/') - path));
	tree = cell__yaml_parse(path, text, strlen(text), &problems);
	root = tree ? cell__yaml_to_json(tree) : NULL;
	if (!folder)
		status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	else if (!root)
		status = cell_fail(err, CELL_E_INVALID, 0, "the kubeconfig %.80s, line %d: %.100s", path,
				   problems.count ? problems.list[0].line : 0, problems.count ? problems.list[0].message : "it is empty");
	else
		status = take_kubeconfig(root, config, folder, access, err);
	explicit_bzero(text, strlen(text));
	json_decref(root);
	cell__yaml_destroy(tree);
	cell__problems_finish(&problems);
	return status;
}

/* ---- named files, or those of a pod ---- */

static int read_files(const json_t *config, struct cell__kube_access *access, struct cell_error *err)
{
	const char *url = text_of(config, "api"), *token = text_of(config, "token_file"), *ca = text_of(config, "ca_file");
	bool plain = url && !strncmp(url, "http://", 7); /* `kubectl proxy` */

	if (copy_text(url ? url : CLUSTER_URL, &access->url, err) < 0)
		return -1;
	if (!plain || token) {
		if (load("the token", token ? token : ACCOUNT "token", &access->token, err) < 0)
			return -1;
		if (!plain && load("the certificates", ca ? ca : ACCOUNT "ca.crt", &access->ca, err) < 0)
			return -1;
	}
	if (!access->space && !token && !plain)
		return load("the namespace", ACCOUNT "namespace", &access->space, err);
	return 0;
}

/* ---- what holds for all ---- */

/* The host of a URL is this machine by its name: an address that only looks like one is not. */
static bool is_loopback(const char *host)
{
	static const char *const names[] = { "127.0.0.1", "localhost", "[::1]" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		size_t size = strlen(names[i]);

		if (!strncmp(host, names[i], size) && (!host[size] || host[size] == ':' || host[size] == '/'))
			return true;
	}
	return false;
}

static int check_url(struct cell__kube_access *access, struct cell_error *err)
{
	bool secure = !strncmp(access->url, "https://", 8), plain = !strncmp(access->url, "http://", 7);
	const char *host = access->url + (secure ? 8 : 7);
	size_t size = strlen(access->url);

	if ((!secure && !plain) || !*host || strpbrk(access->url, "@?# \t\r\n\\"))
		return cell_fail(err, CELL_E_INVALID, 0, "the API server's URL is '%.100s', expected https://HOST[:PORT]", access->url);
	access->is_local = is_loopback(host);
	if (plain && !access->is_local)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the API server's URL is '%.100s': http:// is for a proxy on this machine (127.0.0.1) only", access->url);
	while (size && access->url[size - 1] == '/')
		access->url[--size] = '\0';
	for (const char *at = access->token; at && *at; at++)
		if (*at <= ' ' || *at > '~')
			return cell_fail(err, CELL_E_INVALID, 0, "the token for the API server has characters that are not visible ASCII");
	if (!access->cert != !access->key)
		return cell_fail(err, CELL_E_INVALID, 0, "the kubeconfig has a client certificate without its key, or the other way round");
	return 0;
}

static int read_all(const json_t *config, struct cell__kube_access *access, struct cell_error *err)
{
	if (copy_text(text_of(config, "namespace"), &access->space, err) < 0 ||
	    (text_of(config, "kubeconfig") ? read_kubeconfig : read_files)(config, access, err) < 0 || check_url(access, err) < 0)
		return -1;
	if (!access->space && copy_text("default", &access->space, err) < 0)
		return -1;
	if (!cell__kube_is_name(access->space))
		return cell_fail(err, CELL_E_INVALID, 0, "'%.70s' is not a valid name of a namespace", access->space);
	if (load("the key of the pool", text_of(config, "pool_key_file"), &access->pool_key, err) < 0)
		return -1;
	if (strlen(access->pool_key) < MIN_KEY_CHARS)
		return cell_fail(err, CELL_E_INVALID, 0, "the key of the pool has %zu characters, expected at least %u",
				 strlen(access->pool_key), MIN_KEY_CHARS);
	return 0;
}

int cell__kube_access_read(const json_t *config, struct cell__kube_access *ret_access, struct cell_error *err)
{
	struct cell__kube_access access = { 0 };

	if (read_all(config, &access, err) < 0) {
		cell__kube_access_finish(&access);
		return -1;
	}
	*ret_access = access;
	return 0;
}
