// Requests to the server. The login is a cookie that scripts cannot read, and a proof that goes with each request.
import { signal } from '@preact/signals';

export interface Me {
  name: string; scopes: string[]; workspace: string | null; version: string; executor: string; layers: boolean; audit: boolean;
}
export class Failure extends Error {
  constructor(readonly status: number, readonly code: string, words: string) { super(words); }
}
export interface ServerEvent { type: string; id: string; data: any; }

const PROOF = 'workcell-csrf';
const SHORTEST_PAUSE = 250, LONGEST_PAUSE = 5000; // ms before a stream is asked for again
export const me = signal<Me | null>(null);
export const online = signal(true);

export function may(scope: string): boolean {
  return !!me.value && (me.value.scopes.includes(scope) || (scope === 'metrics' && me.value.scopes.includes('admin')));
}

function headersOf(more: Record<string, string> = {}): Record<string, string> {
  const proof = localStorage.getItem(PROOF);
  return proof ? { 'X-CSRF-Token': proof, ...more } : more;
}

async function failureOf(answer: Response): Promise<Failure> {
  let words = `${answer.status} ${answer.statusText}`, code = '';
  try {
    const body = await answer.json();
    code = body.code ?? '';
    words = typeof body.detail === 'string' ? body.detail : JSON.stringify(body.detail);
  } catch { /* not JSON: the status says it */ }
  if (answer.status === 401) me.value = null;
  return new Failure(answer.status, code, words);
}

export async function request(method: string, path: string, body?: unknown, headers: Record<string, string> = {}, signal?: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method, signal, credentials: 'same-origin', cache: 'no-store',
      headers: headersOf(body === undefined ? headers : { 'Content-Type': 'application/json', ...headers }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (!signal?.aborted) online.value = false;
    throw error;
  }
  online.value = true;
  if (!answer.ok) throw await failureOf(answer);
  return answer;
}

export async function ask<T = any>(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<T> {
  const answer = await request(method, path, body, headers);
  return answer.status === 204 ? undefined as T : await answer.json() as T;
}

export async function login(given: { token: string } | { code: string }): Promise<void> {
  const { csrf, ...who } = await ask<Me & { csrf: string }>('POST', '/console/login', given);
  localStorage.setItem(PROOF, csrf);
  me.value = who;
}

export async function logout(): Promise<void> {
  await ask('POST', '/console/logout');
  localStorage.removeItem(PROOF);
  me.value = null;
}

export async function recognize(): Promise<void> {
  try {
    me.value = await ask<Me>('GET', '/v1/whoami');
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    me.value = null;
  }
}

/** Lines of an event stream (RFC: WHATWG HTML, server-sent events) as events. */
async function* parse(body: ReadableStream<BufferSource>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', type = 'message', id = '', data: string[] = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop()!;
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') {
        if (data.length) yield { type, id, data: JSON.parse(data.join('\n')) };
        type = 'message';
        data = [];
      } else if (line.startsWith('event: ')) type = line.slice(7);
      else if (line.startsWith('data: ')) data.push(line.slice(6));
      else if (line.startsWith('id: ')) id = line.slice(4);
    }
  }
}

function refuses(error: unknown): error is Failure {
  return error instanceof Failure && error.status >= 400 && error.status < 500 && error.status !== 429;
}

/**
 * Reads a stream until it is stopped, and resumes it where it broke. After a restart of the server it is another stream of the same address:
 * then on() gets an event `restart` first. refused(): there is no such stream any more.
 */
export function follow(path: string, on: (event: ServerEvent) => void, refused: (why: Failure) => void): () => void {
  const stop = new AbortController();
  let last = '', stream: string | null = null, pause = SHORTEST_PAUSE;
  const anew = (): void => {
    last = '';
    stream = null;
    on({ type: 'restart', id: '', data: {} });
  };
  const read = async (): Promise<void> => {
    const answer = await request('GET', path, undefined, { Accept: 'text/event-stream', ...(last ? { 'Last-Event-ID': last } : {}) }, stop.signal);
    const id = answer.headers.get('X-Stream-ID');
    if (stream && id !== stream) {
      await answer.body?.cancel();
      anew();
      return;
    }
    stream = id;
    for await (const event of parse(answer.body as ReadableStream<BufferSource>)) {
      pause = SHORTEST_PAUSE;
      if (event.id) last = event.id;
      on(event);
    }
  };
  const run = async (): Promise<void> => {
    while (!stop.signal.aborted) {
      try {
        await read(); // if it returns, the session has ended, or the server: the next answer says which
      } catch (error) {
        if (stop.signal.aborted) return;
        if (refuses(error) && error.status === 400 && last) anew(); // it does not know that event
        else if (refuses(error)) {
          refused(error);
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  };
  void run();
  return () => stop.abort();
}
