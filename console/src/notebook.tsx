// One session as a notebook: its cells as they ran, live, with what they printed, called and changed.
import { signal, type Signal } from '@preact/signals';
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask, follow, may, type Failure, type ServerEvent } from './api';
import { Branches } from './branches';
import { Python } from './code';
import { Editor } from './editor';
import { LongText, Parts, pretty, type Part } from './output';
import { duration, Shown, size, Terminal } from './text';
import { act, ago, Problem, type Session, usePolled, type Variable, variablesOf } from './ui';

interface Call { id: number; name: string; kind: string; args: unknown; state: string; result?: string; error?: string; ms?: number; reason?: string; }
type Item = { kind: 'text'; stream: string; text: string } | { kind: 'display'; parts: Part[] } | { kind: 'call'; call: Call } | { kind: 'note'; text: string };
interface Ended {
  repr: string | null; parts: Part[]; notices: string[]; duration_ms: number; state: string;
  error: { code: string; type: string; message: string; traceback: string } | null;
}
interface Change { name: string; what: 'new' | 'changed' | 'gone'; }
interface Cell { id: number; at: number; code: string; items: Item[]; kept: number; dropped: number; ended: Ended | null; revision: Signal<number>; note?: string; changes?: Change[]; since?: number; }

const CALM = 50; // ms without an event
const BLOCK = 40; // cells that are shown or left out together
const SETTLED = 120; // ms after the end of a cell without another: then its variables are looked at
const MAX_TEXT = 1_000_000; // characters of one stretch of output that the page keeps
const MAX_ITEMS = 1000; // stretches, displays and calls of one cell
const MAX_KEPT = 64_000_000; // characters of one cell's items

class Notebook {
  cells: Cell[] = [];
  byRun = new Map<number, Cell>();
  count = signal(0);
  missed = signal(0);
  variables = signal<unknown>(null); // as the kernel answered after the newest cell
  private touched = new Set<Cell>();
  private grown = false;
  private planned = false;
  private drawn = 0;

  /** Events come in bursts: what they change is drawn once a frame, and at once after a while without any. */
  private plan(): void {
    if (this.planned) return;
    this.planned = true;
    const draw = (): void => {
      this.planned = false;
      this.drawn = performance.now();
      for (const cell of this.touched) cell.revision.value++;
      this.touched.clear();
      if (this.grown) this.count.value = this.cells.length;
      this.grown = false;
    };
    if (document.hidden) setTimeout(draw, 100);
    else if (performance.now() - this.drawn > CALM) setTimeout(draw, 0);
    else requestAnimationFrame(draw);
  }

  private add(cell: Cell): void {
    this.cells.push(cell);
    this.grown = true;
    this.plan();
  }

  private note(text: string): void {
    this.add({ id: -this.cells.length - 1, at: 0, code: '', items: [], kept: 0, dropped: 0, ended: null, revision: signal(0), note: text });
  }

  private find(run: number): Cell {
    let cell = this.byRun.get(run);
    if (!cell) {
      cell = { id: run, at: 0, code: '', items: [], kept: 0, dropped: 0, ended: null, revision: signal(0) };
      this.byRun.set(run, cell);
      this.add(cell);
    }
    this.touched.add(cell);
    this.plan();
    return cell;
  }

  private call(cell: Cell, data: any): Call {
    const item = cell.items.find((each): each is Item & { kind: 'call' } => each.kind === 'call' && each.call.id === data.id);
    if (item) return item.call;
    const call: Call = { id: data.id, name: data.callable ? `${data.tool}.${data.callable}` : data.tool, kind: data.kind, args: data.args, state: 'runs' };
    this.put(cell, { kind: 'call', call }, 0);
    return call;
  }

  /** The oldest go first, as in the server; calls that have not ended stay. */
  private put(cell: Cell, item: Item, weight: number): void {
    cell.items.push(item);
    cell.kept += weight;
    while (cell.items.length > MAX_ITEMS || (cell.kept > MAX_KEPT && cell.items.length > 1)) {
      const at = cell.items.findIndex((each) => each.kind !== 'call' || each.call.ms !== undefined);
      if (at < 0) return;
      const [gone] = cell.items.splice(at, 1);
      cell.kept -= weightOf(gone);
      cell.dropped++;
    }
  }

  private chunk(cell: Cell, data: any): void {
    const text: string = data.text ?? new TextDecoder().decode(Uint8Array.from(atob(data.base64 ?? ''), (each) => each.charCodeAt(0)));
    const last = cell.items[cell.items.length - 1];
    if (last?.kind === 'text' && last.stream === data.stream) {
      const before = last.text.length;
      last.text += text;
      if (last.text.length > MAX_TEXT) last.text = '…' + last.text.slice(-MAX_TEXT / 2);
      cell.kept += last.text.length - before;
    } else {
      this.put(cell, { kind: 'text', stream: data.stream, text }, text.length);
    }
  }

  /** What the cells since the last look changed: shown at the newest of them. */
  tell(changes: Change[], since: number): void {
    const cell = this.cells.findLast((each) => each.ended && !each.note);
    if (!cell || !changes.length) return;
    cell.changes = changes;
    cell.since = since;
    this.touched.add(cell);
    this.plan();
  }

  get lastEnded(): number {
    return this.cells.findLast((each) => each.ended && !each.note)?.id ?? 0;
  }

  take({ type, data }: ServerEvent): void {
    if (type === 'gap') { this.missed.value += data.missed; return; }
    if (type === 'branch') { this.note(branchWords(data)); return; }
    if (type === 'restart') {
      this.byRun.clear();
      this.note('The server was started again. What happened in between is not shown.');
      return;
    }
    if (type === 'reset') { this.note('The session was reset: its variables are gone.'); return; }
    const cell = this.find(data.run_id);
    if (type === 'cell') Object.assign(cell, { code: data.code, at: data.at });
    else if (type === 'chunk') this.chunk(cell, data);
    else if (type === 'display' || type === 'image') {
      const item: Item = data.parts ? { kind: 'display', parts: data.parts } : { kind: 'note', text: `a display of ${size(data.omitted_bytes)} was not kept` };
      this.put(cell, item, weightOf(item));
    } else if (type === 'call_started') this.call(cell, data);
    else if (type === 'call_ended') {
      Object.assign(this.call(cell, data), { state: data.decision, result: data.result, error: data.error, ms: data.duration_ms });
    } else if (type === 'approval') Object.assign(this.call(cell, data), { state: 'waits', reason: data.reason });
    else if (type === 'approval_ended') Object.assign(this.call(cell, data), { state: data.decision, reason: data.reason });
    else if (type === 'ended') cell.ended = { parts: [], notices: [], repr: null, duration_ms: 0, state: '', ...data };
  }
}

function weightOf(item: Item): number {
  if (item.kind === 'display') return item.parts.reduce((sum, part) => sum + (part.text ?? part.base64 ?? '').length, 0);
  return item.kind === 'text' ? item.text.length : 0;
}

function branchWords(data: any): string {
  if (data.kind === 'fork') return `Forked as ${data.session_id}.`;
  if (data.kind === 'point') return `Kept the point “${data.name}”.`;
  if (data.kind === 'rewind') return data.name ? `Rewound to the point “${data.name}”.` : `Rewound by ${data.cells} cells.`;
  return `${data.kind} ${data.session_id ?? ''}`;
}

function CallView({ call }: { call: Call }): JSX.Element {
  const state = { ok: 'done', runs: 'runs…', waits: 'waits for approval' }[call.state] ?? call.state;
  return (
    <details class={`call ${call.state}`} open={call.state === 'waits'}>
      <summary><span class="tag">{call.kind}</span> <code><Shown text={call.name} /></code> <span class="state">{state}</span>
        {call.ms !== undefined && <span class="time">{duration(call.ms / 1000)}</span>}</summary>
      {call.reason && <p><Shown text={call.reason} /></p>}
      <pre aria-label="arguments"><LongText text={JSON.stringify(call.args ?? {}, null, 2)} /></pre>
      {call.result !== undefined && <pre aria-label="result" class="result"><LongText text={pretty(call.result)} /></pre>}
      {call.error && <pre aria-label="error" class="error"><LongText text={call.error} /></pre>}
      {call.state === 'waits' && may('approve') && <a href="#/approvals">Answer it</a>}
    </details>
  );
}

function ErrorView({ error }: { error: NonNullable<Ended['error']> }): JSX.Element {
  return (
    <details class="failure">
      <summary><b><Shown text={error.type || error.code} /></b>{error.message ? ': ' : ''}<Shown text={error.message.slice(0, 400)} /></summary>
      <pre><LongText text={error.traceback || error.message} of={(text) => <Terminal text={text} />} /></pre>
    </details>
  );
}

function ItemView({ item }: { item: Item }): JSX.Element | null {
  if (item.kind === 'text') return <pre class={item.stream}><LongText text={item.text} of={(text) => <Terminal text={text} />} /></pre>;
  if (item.kind === 'display') return <Parts parts={item.parts} alt="a picture that the cell displayed" />;
  if (item.kind === 'call') return <CallView call={item.call} />;
  return <p class="hint">{item.text}</p>;
}

function CellView({ cell, session }: { cell: Cell; session: string }): JSX.Element {
  cell.revision.value; // drawn again when it changes
  if (cell.note) return <p class="note"><Shown text={cell.note} /></p>;
  const { ended } = cell;
  return (
    <article class={`cell ${ended ? (ended.error ? 'failed' : 'done') : 'running'}`} aria-label={`cell ${cell.id}`}>
      <header><span class="number">[{cell.id}]</span>
        <span class="state">{ended ? (ended.error ? ended.error.code : duration(ended.duration_ms / 1000)) : 'runs…'}</span>
        {ended && ended.state === 'lost' && <span class="tag warn">state lost</span>}
        {cell.at > 0 && <time>{new Date(cell.at * 1000).toLocaleTimeString()}</time>}
        {!ended && may('run') && <button onClick={() => act(() => ask('POST', `/v1/sessions/${session}/interrupt`))}>Interrupt</button>}
      </header>
      <pre class="source"><LongText text={cell.code} of={(text) => <Python text={text} />} /></pre>
      <div class="output">
        {cell.dropped > 0 && <p class="hint">{cell.dropped} earlier parts of the output are no longer shown.</p>}
        {cell.items.map((item) => <ItemView item={item} />)}
        {ended?.error ? <ErrorView error={ended.error} /> : ended?.parts.length ? <Parts parts={ended.parts} alt="a picture: the value of the cell" />
          : ended?.repr ? <pre class="value"><LongText text={ended.repr} /></pre> : null}
        {ended?.notices.map((notice) => <p class="hint"><Shown text={notice} /></p>)}
        {cell.changes && <p class="changes" aria-label="what it changed">{cell.since !== undefined && cell.since + 1 < cell.id && <small>since cell {cell.since}: </small>}
          {cell.changes.slice(0, 30).map((each) => <><span class={`tag ${each.what}`}>{each.what}</span> <code><Shown text={each.name} /></code> </>)}{cell.changes.length > 30 && <small>and {cell.changes.length - 30} more</small>}</p>}
      </div>
    </article>
  );
}

/** Cells far outside of the window are an empty box of the same height. */
function Block({ cells, session, last }: { cells: Cell[]; session: string; last: boolean }): JSX.Element {
  const box = useRef<HTMLDivElement>(null), [near, setNear] = useState(last), height = useRef(cells.length * 90);
  useEffect(() => {
    const watcher = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting && box.current) height.current = box.current.offsetHeight || height.current;
      setNear(entry.isIntersecting);
    }, { rootMargin: '1500px' });
    watcher.observe(box.current!);
    return () => watcher.disconnect();
  }, []);
  return <div ref={box} style={near ? undefined : { height: `${height.current}px` }}>{near && cells.map((cell) => <CellView key={cell.id} cell={cell} session={session} />)}</div>;
}

function Cells({ book, session, parent }: { book: Notebook; session: string; parent: string | null }): JSX.Element {
  const count = book.count.value, blocks: Cell[][] = [];
  for (let at = 0; at < count; at += BLOCK) blocks.push(book.cells.slice(at, at + BLOCK));
  return (
    <section aria-label="cells" class="cells">
      {book.missed.value > 0 && <p class="hint">{book.missed.value} earlier events are no longer kept.</p>}
      {parent && <p class="note">Continues from <a href={`#/session/${parent}`}><code>{parent.slice(0, 12)}</code></a>, which has the cells before.</p>}
      {count === 0 && !parent && <p class="hint">No cell has run since the session was opened or woken.</p>}
      {blocks.map((cells, i) => <Block key={i} cells={cells} session={session} last={i >= blocks.length - 2} />)}
    </section>
  );
}

/** By type, size and preview: what looks the same counts as unchanged. */
function changesOf(before: Variable[], after: Variable[]): Change[] {
  const words = (each: Variable): string => JSON.stringify([each.type, each.size, each.preview]), old = new Map(before.map((each) => [each.name, words(each)])), found: Change[] = [];
  for (const each of after) {
    if (!old.has(each.name)) found.push({ name: each.name, what: 'new' });
    else if (old.get(each.name) !== words(each)) found.push({ name: each.name, what: 'changed' });
    old.delete(each.name);
  }
  return [...found, ...[...old.keys()].map((name): Change => ({ name, what: 'gone' }))];
}

/** Looks at the variables when a cell has ended while the page is open. Nobody else pays for it. Returns what stops it. */
function watchChanges(book: Notebook, id: string): [heard: (event: ServerEvent) => void, stop: () => void] {
  let before: Variable[] | null = null, since = 0, timer = 0, alive = true;
  const look = async (): Promise<void> => {
    try {
      const answer = await ask('GET', `/v1/sessions/${id}/variables`), variables = variablesOf(answer), newest = book.lastEnded;
      if (!alive) return;
      book.variables.value = answer;
      if (before) book.tell(changesOf(before, variables), since);
      if (before) since = newest;
      before = variables;
    } catch { /* the next cell runs, or this executor cannot tell: then nothing is said */ }
  };
  const soon = (): void => {
    clearTimeout(timer);
    timer = setTimeout(look, SETTLED) as unknown as number;
  };
  const opened = Date.now() / 1000;
  const heard = ({ type, data }: ServerEvent): void => {
    const earlier = type === 'ended' && (book.byRun.get(data.run_id)?.at ?? 0) + (data.duration_ms ?? 0) / 1000 < opened; // it is told of what was before
    if (earlier) since = Math.max(since, data.run_id);
    else if (type === 'ended' || type === 'reset' || type === 'branch') soon();
  };
  void look();
  return [heard, () => { alive = false; clearTimeout(timer); }];
}

/** Where the server can tell them without running a cell. */
function Variables({ session, busy, book }: { session: string; busy: boolean; book: Notebook }): JSX.Element | null {
  const [polled] = usePolled<unknown>(busy ? null : `/v1/sessions/${session}/variables`, 3000), seen = book.variables.value, [found, setFound] = useState<unknown>(null);
  useEffect(() => setFound(polled), [polled]);
  useEffect(() => setFound(seen), [seen]); // whichever answer came last
  if (!found) return null;
  const variables = variablesOf(found), more = Number((found as { more?: unknown }).more) || 0;
  return (
    <details class="side" open>
      <summary>Variables ({variables.length + more})</summary>
      <table><thead><tr><th>name</th><th>type</th><th>value</th></tr></thead>
        <tbody>{variables.map((each) => <tr><td><code><Shown text={each.name} /></code></td><td><Shown text={each.type} /></td>
          <td class="clip"><Shown text={(each.preview).slice(0, 200)} /></td></tr>)}</tbody></table>
      {more > 0 && <p class="hint">{more} more are not shown.</p>}
    </details>
  );
}

function Receipt({ receipt }: { receipt: unknown }): JSX.Element | null {
  return receipt ? <details class="side"><summary>Isolation receipt</summary><pre><Shown text={JSON.stringify(receipt, null, 2)} /></pre></details> : null;
}

export function NotebookPage({ id }: { id: string }): JSX.Element {
  const [book, setBook] = useState(() => new Notebook()), [why, setWhy] = useState<Failure | null>(null), over = why !== null;
  const [session, problem] = usePolled<Session & { receipt: unknown }>(over ? null : `/v1/sessions/${id}`, 2000);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const fresh = new Notebook();
    setBook(fresh);
    setWhy(null);
    const [heard, stop] = watchChanges(fresh, id);
    const leave = follow(`/v1/sessions/${id}/events`, (event) => {
      fresh.take(event);
      heard(event);
    }, setWhy);
    return () => { leave(); stop(); };
  }, [id]);
  const run = (code: string): void => {
    void act(() => ask('POST', `/v1/sessions/${id}/runs`, { code }));
    end.current?.scrollIntoView({ block: 'end' });
  };
  return (
    <div class="notebook">
      <header class="bar">
        <h1>Session <code><Shown text={id.slice(0, 12)} /></code></h1>
        {session && <p class="facts"><Shown text={session.owner} /> · {session.executor} · {size(session.memory_bytes)} · {session.state === 'busy' ? 'runs a cell' : `idle ${ago(session.idle_seconds)}`}</p>}
        {session && may('run') && <p class="buttons">
          <button onClick={() => act(() => ask('POST', `/v1/sessions/${id}/interrupt`))} disabled={session.state !== 'busy'}>Interrupt</button>
          <button onClick={() => confirm('Reset the session? Its variables are lost.') && act(() => ask('POST', `/v1/sessions/${id}/reset`))}>Reset</button>
          <button onClick={() => confirm('End the session?') && act(async () => { await ask('DELETE', `/v1/sessions/${id}`); location.hash = '#/sessions'; })}>End</button>
        </p>}
      </header>
      {why && <p class="note" role="status">{why.status === 404 || why.status === 410 ? 'This session has ended.' : <Shown text={why.message} />}</p>}
      {!session && <Problem error={problem} />}
      <div class="columns">
        <div class="main">
          <Cells book={book} session={id} parent={session?.parent ?? null} />
          {may('run') && !over && <Editor session={id} run={run} disabled={over} />}
          <div ref={end} />
        </div>
        <aside aria-label="state of the session">
          {session && <Variables key={id} session={id} busy={session.state === 'busy'} book={book} />}
          {session && <Branches id={id} session={session} />}
          {session && <Receipt receipt={session.receipt} />}
        </aside>
      </div>
    </div>
  );
}
