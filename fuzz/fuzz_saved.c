/* wire/saved: the description of a saved session.  Whatever is accepted is within its bounds, and reads the same once more. */
#include "base/base.h"
#include "fuzz.h"
#include "wire/saved.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell__saved saved, again;
	struct cell__buf text = CELL_BUF_INIT;
	uint8_t *copy = fuzz_copy(data, size);
	struct cell_error err = { 0 };
	if (cell__saved_read((const char *)copy, size, &saved, &err) == 0) {
		MUST(saved.n_files > 0 && saved.n_files <= CELL_SAVED_FILES && cell__saved_is_id(saved.id));
		MUST(saved.n_own > 0 && saved.n_own <= saved.n_files && cell__saved_memories(&saved) <= CELL_SAVED_MEMORIES);
		for (size_t i = 0; i < saved.n_points; i++) {
			const struct cell__saved_point *point = &saved.points[i];
			MUST(point->n_files > 0 && point->n_files <= CELL_SAVED_MEMORIES && point->layer < (int)saved.n_files);
			for (size_t k = 0; k < point->n_files; k++)
				MUST(point->files[k] < saved.n_files && !saved.files[point->files[k]].is_layer);
		}
		for (size_t i = 0; i < saved.n_files; i++) {
			uint64_t after = 0;
			MUST(strlen(saved.files[i].name) == CELL_SAVED_NAME && !strchr(saved.files[i].name, '/'));
			for (size_t k = 0; k < saved.files[i].n_pieces; k++) {
				const struct cell__saved_piece *piece = &saved.files[i].pieces[k];
				MUST(piece->offset >= after && piece->size <= CELL_SAVED_PIECE_BYTES &&
				     piece->stored <= CELL_SAVED_STORED_BYTES);
				after = piece->offset + piece->size;
			}
		}
		if (cell__saved_write(&saved, &text, &err) == 0) {
			MUST(cell__saved_read(text.data, text.size, &again, &err) == 0 && again.n_files == saved.n_files);
			cell__saved_finish(&again);
		}
	} else {
		MUST(err.code == CELL_E_DAMAGED || err.code == CELL_E_DIFFERS || err.code == CELL_E_NOMEM);
	}
	cell__saved_finish(&saved);
	cell__buf_finish(&text);
	free(copy);
	return 0;
}
