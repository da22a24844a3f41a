/*
 * The server's certificate, which may be replaced while it serves.
 *
 *     loaded (pool) ──▶ current ──a newer one──▶ retired ──handshakes that began with it are over──▶ gone
 *
 * GnuTLS requests the certificate in each handshake and makes no copy of it, so a retired one is kept for longer than a handshake
 * can last.  The callback does not get the server: it is called only within MHD_run(), around which the server is noted.
 */
#include "server/server.h"

#include <gnutls/abstract.h>
#include <string.h>

#include "base/libraries.h"

#define MAX_CHAIN 16u
#define RETIRED_US (600 * INT64_C(1000000))

struct cell__tls {
	gnutls_pcert_st chain[MAX_CHAIN];
	unsigned count;
	gnutls_privkey_t key;
	int64_t retired_us;
	struct cell__tls *next; /* retired before it */
};

static _Thread_local struct cell_server *asked;

void cell__tls_destroy(struct cell__tls *tls)
{
	struct cell__tls *next;

	for (; tls; tls = next) {
		next = tls->next;
		for (unsigned i = 0; i < tls->count; i++)
			gnutls_pcert_deinit(&tls->chain[i]);
		if (tls->key)
			gnutls_privkey_deinit(tls->key);
		free(tls);
	}
}

static gnutls_datum_t datum_of(const char *text)
{
	return (gnutls_datum_t){ .data = (unsigned char *)text, .size = (unsigned)strlen(text) };
}

/* A certificate with a wrong key would fail only at the clients. */
static int check_pair(const gnutls_datum_t *cert, const gnutls_datum_t *key)
{
	gnutls_certificate_credentials_t pair;
	int rc = gnutls_certificate_allocate_credentials(&pair);

	if (rc < 0)
		return rc;
	rc = gnutls_certificate_set_x509_key_mem(pair, cert, key, GNUTLS_X509_FMT_PEM);
	gnutls_certificate_free_credentials(pair);
	return rc;
}

int cell__tls_load(const char *cert, const char *key, struct cell__tls **ret_tls, struct cell_error *err)
{
	struct cell__tls *tls = cell__alloc(1, sizeof(*tls));
	gnutls_datum_t cert_text = datum_of(cert), key_text = datum_of(key);
	unsigned count = MAX_CHAIN;
	int rc;

	if (!tls)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the certificate");
	if (cell__library_load(CELL__LIBRARY_GNUTLS, err) < 0) {
		free(tls);
		return -1;
	}
	rc = check_pair(&cert_text, &key_text);
	if (rc >= 0)
		rc = gnutls_pcert_list_import_x509_raw(tls->chain, &count, &cert_text, GNUTLS_X509_FMT_PEM,
						       GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
	if (rc >= 0) {
		tls->count = count;
		rc = gnutls_privkey_init(&tls->key);
	}
	if (rc >= 0)
		rc = gnutls_privkey_import_x509_raw(tls->key, &key_text, GNUTLS_X509_FMT_PEM, NULL, 0);
	if (rc < 0) {
		cell__tls_destroy(tls);
		return cell_fail(err, CELL_E_INVALID, 0, "the TLS certificate or its key (PEM) is not valid: %s", gnutls_strerror(rc));
	}
	*ret_tls = tls;
	return 0;
}

void cell__tls_replace(struct cell_server *server, struct cell__tls *tls)
{
	if (server->tls)
		server->tls->retired_us = cell__now_us();
	tls->next = server->tls;
	server->tls = tls;
}

void cell__tls_sweep(struct cell_server *server, int64_t now_us)
{
	int64_t kept_us = RETIRED_US > 2000 * server->limits.head_ms ? RETIRED_US : 2000 * server->limits.head_ms;

	for (struct cell__tls *tls = server->tls; tls && tls->next; tls = tls->next) {
		if (now_us - tls->next->retired_us > kept_us) {
			cell__tls_destroy(tls->next); /* and those before it */
			tls->next = NULL;
		}
	}
}

void cell__tls_run(struct cell_server *server)
{
	asked = server;
	MHD_run(server->daemon);
	asked = NULL;
}

static int give_certificate(gnutls_session_t session, const gnutls_datum_t *names, int n_names, const gnutls_pk_algorithm_t *algorithms,
			    int n_algorithms, gnutls_pcert_st **ret_chain, unsigned *ret_count, gnutls_privkey_t *ret_key)
{
	(void)session;
	(void)names;
	(void)n_names;
	(void)algorithms;
	(void)n_algorithms;
	if (!asked || !asked->tls)
		return -1;
	*ret_chain = asked->tls->chain;
	*ret_count = asked->tls->count;
	*ret_key = asked->tls->key;
	return 0;
}

void *cell__tls_giver(void)
{
	return (void *)give_certificate;
}

ssize_t cell__tls_send(void *session, const void *bytes, size_t size)
{
	return gnutls_record_send(session, bytes, size);
}
