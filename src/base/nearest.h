/* The known word that somebody probably meant: "did you mean". */
#ifndef CELL_BASE_NEAREST_H
#define CELL_BASE_NEAREST_H

/*
 * The closest of the words (ends with NULL) by insertions, deletions, exchanges and swaps of letters; NULL: none is close. A word that
 * begins with the given one counts as close if it is the only such word.
 */
const char *cell__nearest(const char *given, const char *const *words);

#endif
