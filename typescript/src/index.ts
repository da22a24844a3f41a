export * from "./client.js";
export * from "./errors.js";
export { EventParser, readEvents, type ServerEvent } from "./sse.js";
export type * as api from "./types.js";
