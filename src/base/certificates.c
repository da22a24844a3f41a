#include "base/certificates.h"

#include <stddef.h>
#include <unistd.h>

const char *cell__first_readable(const char *const *files)
{
	while (*files && access(*files, R_OK))
		files++;
	return *files;
}

const char *cell__system_certificates(void)
{
#ifdef CELL_FIND_CERTIFICATES
	static const char *const files[] = {
		"/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch, Gentoo */
		"/etc/pki/tls/certs/ca-bundle.crt", /* Fedora, RHEL */
		"/etc/ssl/ca-bundle.pem", /* SUSE */
		"/etc/ssl/cert.pem", /* Alpine */
		NULL,
	};
	return cell__first_readable(files);
#else
	return NULL;
#endif
}
