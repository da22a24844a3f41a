// The memory that the two isolates share: a ring for the bytes that the host sends, and a page of control words.
export const HEAD = 0; // bytes put into the ring, modulo 2^32; written by the main isolate
export const TAIL = 1; // bytes taken out; written by the worker
export const WAKE = 2; // what the worker sleeps on: changes with everything that it must look at
export const INTERRUPT = 3; // the run that is to stop; 0: none
export const ENDED = 4; // 1: the host is gone
export const WAITING = 5; // 1: the main isolate waits for room in the ring

// The network, where a session has one: the worker asks, the main isolate does it and answers here.
export const NET_CALL = 6; // number of the question; an answer to another one comes too late and is dropped
export const NET_DONE = 7; // number of the question that is answered
export const NET_RESULT = 8; // its result: a size, the number of a connection; -1: words of what went wrong are there
export const NET_SIZE = 9; // bytes of data that came with it
export const NET_BYTES = 1 << 18;

export const CONTROL_BYTES = 64;
export const RING_BYTES = 1 << 20;

export const HEADER_BYTES = 24; // src/wire/frame.h
export const MAGIC = 0x57;
export const VERSION = 1;
export const FRAME_INTERRUPT = 5;
export const FRAME_OUTPUT = 71;
export const FRAME_SNAPSHOT = 72;
