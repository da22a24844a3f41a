/* wire/recording: recordings of sessions.  Whatever is accepted is within its bounds, and its parts belong together. */
#include "base/base.h"
#include "fuzz.h"

#include "wire/recording.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell__recording recording;
	struct cell_error err;
	uint8_t *copy = fuzz_copy(data, size);
	if (cell__recording_read((const char *)copy, size, &recording, &err) == 0) {
		MUST(strlen(recording.seed) == CELL_RECORDING_SEED && json_is_object(recording.head));
		MUST(recording.n_cells <= CELL_RECORDING_CELLS && recording.n_calls <= CELL_RECORDING_CALLS);
		for (size_t i = 0; i < recording.n_cells; i++)
			MUST(recording.cells[i].code && recording.cells[i].timeout_ms != 0 && recording.cells[i].timeout_ms >= -1);
		for (size_t i = 0; i < recording.n_calls; i++) {
			const struct cell__recorded_call *call = &recording.calls[i];
			MUST(call->answer && (call->cell == 0 || call->cell < recording.n_cells));
			MUST(call->key == cell__recording_key(json_object_get(call->asked, "method"), json_object_get(call->asked, "args"),
							      call->raw.size));
		}
	} else {
		MUST(err.code == CELL_E_DAMAGED || err.code == CELL_E_DIFFERS || err.code == CELL_E_LIMIT || err.code == CELL_E_NOMEM);
	}
	cell__recording_finish(&recording);
	free(copy);
	return 0;
}
