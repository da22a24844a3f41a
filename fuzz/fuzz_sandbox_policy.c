/* sandbox/policy: any bytes are a policy or an error with a line; what is a policy can be copied. */
#include <string.h>

#include "fuzz.h"
#include "sandbox/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *text = fuzz_copy(data, size);
	struct cell__sandbox_policy policy, copy;
	struct cell_error err = { 0 };
	if (cell__sandbox_policy_parse(&policy, "p", (const char *)text, size, &err) == 0) {
		MUST(policy.level >= CELL_LEVEL_NO_USERNS && policy.level <= CELL_LEVEL_FULL);
		MUST(policy.tmp_bytes > 0);
		for (size_t i = 0; i < policy.write.count; i++)
			MUST(policy.write.items[i][0] == '/' && policy.write.items[i][1] != '\0');
		MUST(cell__sandbox_policy_copy(&copy, &policy, &err) == 0);
		cell__sandbox_policy_finish(&copy);
		cell__sandbox_policy_finish(&policy);
	} else {
		MUST(err.code == CELL_E_INVALID && strstr(err.msg, "line"));
	}
	free(text);
	return 0;
}
