/*
 * A tool's call and its answer as JSON texts, for the fast path: where host and kernel write exactly these bytes, the other side
 * compares them and builds no tree.  Any other JSON of the same meaning takes the general path.
 *
 * This is the only definition.  The host and the kernel's extension include it; scripts/operations.py generates
 * kernel/workcell_kernel/calltext.py from it.
 */
#ifndef CELL_WIRE_CALL_TEXT_H
#define CELL_WIRE_CALL_TEXT_H

/* HEAD "NAME" MIDDLE ARGS TAIL; NAME is a JSON string, ARGS a JSON object */
#define CELL_CALL_TEXT_HEAD "{\"method\":\"tools.call\",\"args\":{\"name\":"
#define CELL_CALL_TEXT_MIDDLE ",\"args\":"
#define CELL_CALL_TEXT_TAIL "}}"

/* REPLY_HEAD RESULT REPLY_TAIL; these two results say how to read the raw part */
#define CELL_REPLY_TEXT_HEAD "{\"result\":"
#define CELL_REPLY_TEXT_TAIL "}"
#define CELL_RESULT_TEXT_JSON "{\"raw\":\"json\"}"
#define CELL_RESULT_TEXT_TEXT "{\"raw\":\"text\"}"

#endif
