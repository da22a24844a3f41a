/* Names and messages of leases, see lease.h. */
#define _GNU_SOURCE
#include "durable/lease.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_plain(const char *text)
{
	for (const unsigned char *at = (const unsigned char *)text; *at; at++)
		if (*at < 0x21 || *at > 0x7e || *at == '"' || *at == '\\')
			return false;
	return true;
}

int cell__lease_check(const struct cell__lease_host *host, struct cell_error *err)
{
	const char *const texts[] = { host->name, host->url }, *const names[] = { "saved_host", "saved_url" };
	for (size_t i = 0; i < 2; i++)
		if (texts[i] && (strlen(texts[i]) > CELL_LEASE_NAME_BYTES || !is_plain(texts[i])))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "%s must have at most %d printable ASCII characters, without spaces, quotes and backslashes",
					 names[i], CELL_LEASE_NAME_BYTES);
	if (host->lease_ms && (host->lease_ms < CELL_LEASE_MIN_MS || host->lease_ms > CELL_LEASE_MAX_MS))
		return cell_fail(err, CELL_E_INVALID, 0, "saved_lease_ms is %lld, expected %d to %d", (long long)host->lease_ms,
				 CELL_LEASE_MIN_MS, CELL_LEASE_MAX_MS);
	return 0;
}

const char *cell__lease_name(const struct cell__lease_host *host, char *buf, size_t size)
{
	char machine[65] = "";
	if (host && host->name && *host->name)
		return host->name;
	if (gethostname(machine, sizeof machine - 1) < 0 || !*machine || !is_plain(machine))
		strcpy(machine, "unknown");
	snprintf(buf, size, "%s:%d", machine, (int)getpid());
	return buf;
}

int64_t cell__lease_ms(const struct cell__lease_host *host)
{
	return host && host->lease_ms ? host->lease_ms : CELL_LEASE_MS;
}

/* " at NAME (URL)", of what is printable. */
static void describe(const char *name, const char *url, char *out, size_t size)
{
	bool has_name = name && *name && is_plain(name), has_url = url && *url && is_plain(url);
	snprintf(out, size, "%s%.60s%s%.100s%s", has_name || has_url ? " at " : "", has_name ? name : "",
		 has_url ? (has_name ? " (" : "") : "", has_url ? url : "", has_url && has_name ? ")" : "");
}

int cell__lease_conflict(struct cell_error *err, const char *id, const char *name, const char *url)
{
	char where[180];
	describe(name, url, where, sizeof where);
	return cell_fail(err, CELL_E_CONFLICT, 0, "the session %.40s is awake%s", id, *where ? where : " elsewhere");
}

int cell__lease_fail_lost(struct cell_error *err, const char *id, const char *name, const char *url)
{
	char where[180];
	describe(name, url, where, sizeof where);
	return cell_fail(err, CELL_E_CONFLICT, 0, "the session %.40s was lost to another holder%s; it is not saved here any more", id,
			 where);
}

uint64_t cell__lease_read(int fd, char ret_name[CELL_LEASE_NAME_BYTES + 1], char ret_url[CELL_LEASE_NAME_BYTES + 1])
{
	char text[2 * CELL_LEASE_NAME_BYTES + 64] = "";
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	unsigned long long number = 0;
	*ret_name = *ret_url = '\0';
	if (n > 0)
		(void)sscanf(text, "%20llu %256s %256s", &number, ret_name, ret_url);
	return number;
}
