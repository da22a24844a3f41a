#include "base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

static bool v4_is_private(uint32_t a)
{
	static const struct {
		uint32_t net, bits;
	} nets[] = {
		{ 0x00000000, 8 },  { 0x0a000000, 8 },  { 0x64400000, 10 }, { 0x7f000000, 8 },  { 0xa9fe0000, 16 },
		{ 0xac100000, 12 }, { 0xc0000000, 24 }, { 0xc0000200, 24 }, { 0xc0a80000, 16 }, { 0xc6120000, 15 },
		{ 0xc6336400, 24 }, { 0xcb007100, 24 }, { 0xe0000000, 3 },  { 0xc0586300, 24 }, /* 192.88.99.0: a relay into IPv6 */
		{ 0xa83f8110, 32 }, /* 168.63.129.16: Azure's own services, for the machine alone */
	};
	for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
		if ((a ^ nets[i].net) >> (32 - nets[i].bits) == 0)
			return true;
	return false;
}

bool cell__address_is_private(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return v4_is_private(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
	if (address->sa_family != AF_INET6)
		return true;
	const uint8_t *b = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
	static const uint8_t zeros[12], mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff }, nat64[12] = { 0, 0x64, 0xff, 0x9b };
	uint32_t v4 = (uint32_t)b[12] << 24 | (uint32_t)b[13] << 16 | (uint32_t)b[14] << 8 | b[15];
	if (memcmp(b, zeros, 12) == 0 || memcmp(b, mapped, 12) == 0 || memcmp(b, nat64, 12) == 0)
		return memcmp(b, zeros, 12) == 0 || v4_is_private(v4);
	if (b[0] == 0x20 && b[1] == 0x02) /* 6to4 */
		return v4_is_private((uint32_t)b[2] << 24 | (uint32_t)b[3] << 16 | (uint32_t)b[4] << 8 | b[5]);
	if (b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0) /* Teredo: the address of a relay within */
		return true;
	return (b[0] & 0xe0) != 0x20; /* only 2000::/3 is the internet's */
}
