// Calls that wait for a person, of all sessions that this login may answer. Made for the keyboard.
import { signal } from '@preact/signals';
import type { JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { ask, Failure, may, request } from './api';
import { compare, Diff, escaped, plain, Shown, size } from './text';
import { act, ago, Page, say } from './ui';

export interface Waiting {
  id: number; request_id: string; kind: string; tool: string; callable: string; adapter: string; session_id: string; args: any; reason: string | null;
  rule: string | null; waited_ms: number;
}

export const waiting = signal<Waiting[]>([]);
const seen = new Set<string>();
const EVERY = 1000; // ms between two looks
const MOST_NOTIFICATIONS = 3; // at once; code may start many calls
const SETTLED = 700; // ms after which a person has seen that the list has moved
const LONG_LINES = 14, LONG_CHARS = 2000; // arguments that are not seen at once
let movedAt = -SETTLED; // when calls moved because others went by themselves

function nameOf(each: Waiting): string {
  return each.callable ? `${each.tool}.${each.callable}` : each.tool;
}

function notify(title: string, body: string, tag: string): void {
  if (!('Notification' in window) || Notification.permission !== 'granted' || (!document.hidden && location.hash === '#/approvals')) return;
  try {
    const shown = new Notification(title, { body: plain(body).slice(0, 200), tag });
    shown.onclick = () => {
      window.focus();
      location.hash = '#/approvals';
    };
  } catch { /* browsers of phones let only service workers do this: the page itself still says how many wait */ }
}

async function look(): Promise<void> {
  const found = await ask<{ approvals: Waiting[] }>('GET', `/v1/approvals${may('admin') || may('approve') ? '?all=true' : ''}`);
  const fresh = found.approvals.filter((each) => !seen.has(each.request_id));
  if (fresh.length > MOST_NOTIFICATIONS) notify(`${fresh.length} calls wait for approval`, '', 'many');
  else for (const each of fresh) notify('A call waits for approval', `${nameOf(each)} ${each.reason ?? ''}`, each.request_id);
  for (const each of fresh) seen.add(each.request_id);
  found.approvals.sort((a, b) => b.waited_ms - a.waited_ms); // the oldest first: the others stay where they are
  const now = found.approvals, before = waiting.value, stays = before.every((each, i) => now[i]?.request_id === each.request_id);
  if (stays && now.length === before.length) return;
  if (!stays) movedAt = performance.now();
  waiting.value = now;
}

/** For as long as somebody is logged in, whatever page is shown. */
export function useInbox(): void {
  useEffect(() => {
    let alive = true, next = 0;
    const turn = async (): Promise<void> => {
      try {
        if (may('read')) await look();
      } catch { /* the line at the top says that the server is away */ }
      if (alive) next = setTimeout(turn, EVERY) as unknown as number;
    };
    void turn();
    return () => { alive = false; clearTimeout(next); };
  }, []);
}

const MAX_COMPARED = 1 << 20; // bytes of a file

/** The text that the call would replace; '' if there is none. */
async function textBefore(each: Waiting, name: string): Promise<string> {
  try {
    if (each.kind === 'workflow') return String((await ask('GET', `/api/workflows/${encodeURIComponent(name)}`, undefined, { 'X-Session-ID': each.session_id })).source ?? '');
    const where = `/v1/sessions/${each.session_id}/files?path=${encodeURIComponent(name)}`, about = await ask('GET', `${where}&format=json`);
    if (about.size > MAX_COMPARED) throw new Error(`it has ${size(about.size)}`);
    return await (await request('GET', where)).text();
  } catch (error) {
    if (error instanceof Failure && error.status === 404) return '';
    throw error;
  }
}

/** A workflow or a file that would be replaced: what changes in it, by the arguments as they are now. */
function Change({ each, args }: { each: Waiting; args: any }): JSX.Element | null {
  const [before, setBefore] = useState<{ of: string; text: string } | null>(null), [problem, setProblem] = useState('');
  const text: unknown = args?.source ?? args?.content ?? args?.text;
  const name: unknown = each.kind === 'workflow' ? args?.name : args?.path ?? args?.file ?? args?.filename;
  useEffect(() => {
    setProblem('');
    if (typeof text !== 'string' || typeof name !== 'string') return;
    textBefore(each, name).then((found) => setBefore({ of: name, text: found }), (error) => setProblem((error as Error).message));
  }, [each.request_id, name]);
  if (problem) return <p class="problem">What changes cannot be shown: <Shown text={problem} /></p>;
  if (!before || before.of !== name || typeof text !== 'string') return null;
  return <><h3>{before.text ? 'What changes in' : 'New text of'} <code><Shown text={name} /></code></h3><Diff text={compare(before.text, text)} /></>;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function Card({ each, chosen, choose, answered }: { each: Waiting; chosen: boolean; choose: () => void; answered: () => void }): JSX.Element {
  const whole = escaped(JSON.stringify(each.args, null, 2));
  const [args, setArgs] = useState(whole), [reason, setReason] = useState(''), [busy, setBusy] = useState(false);
  const lines = whole.split('\n').length, [opened, setOpened] = useState(lines <= LONG_LINES && whole.length <= LONG_CHARS);
  const card = useRef<HTMLElement>(null), why = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => { if (chosen) card.current?.focus(); }, [chosen]); // before anybody can have moved on
  const field = useRef<HTMLTextAreaElement>(null);
  const fit = (): void => { // to its text, however narrow the screen is: no line is out of sight
    if (!field.current || !opened) return;
    field.current.style.height = 'auto';
    field.current.style.height = `${field.current.scrollHeight + 2}px`;
  };
  useLayoutEffect(fit, [opened, args]);
  useEffect(() => {
    addEventListener('resize', fit);
    return () => removeEventListener('resize', fit);
  }, [opened]);
  const answer = async (body: Record<string, unknown>, words: string): Promise<void> => {
    setBusy(true);
    try {
      await ask('POST', `/v1/sessions/${each.session_id}/approvals/${each.id}`, body);
      say(words);
      answered();
    } catch (error) {
      say(error instanceof Failure && error.status === 404 ? 'Somebody else has answered, or the call has ended.' : (error as Error).message, true);
    }
    setBusy(false);
    waiting.value = waiting.value.filter((other) => other.request_id !== each.request_id);
    await act(look);
  };
  const accept = (always: boolean): void => {
    let changed: unknown;
    if (!opened) {
      setOpened(true);
      say('These arguments are long. They are shown whole now: accept once more.');
      return;
    }
    if (args !== whole) {
      try {
        changed = JSON.parse(args);
      } catch (error) {
        say(`The arguments are not JSON: ${(error as Error).message}`, true);
        return;
      }
    }
    void answer({ accept: true, ...(always ? { always } : {}), ...(changed === undefined ? {} : { args: changed }) }, changed === undefined ? 'Accepted.' : 'Accepted with other arguments.');
  };
  // A card that has just moved under the pointer is not the one that was meant. Keys belong to the card that was chosen.
  const clicked = (work: () => void) => (event: MouseEvent): void => {
    if (event.detail > 0 && performance.now() - movedAt < SETTLED) say('The list has just changed. Look again.', true);
    else work();
  };
  const reject = (): void => { void answer({ accept: false, ...(reason ? { reason } : {}) }, 'Rejected.'); };
  const key = (event: KeyboardEvent): void => {
    if (!may('approve') || event.repeat || event.target !== card.current || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'a') accept(false);
    else if (event.key === 'A') accept(true);
    else if (event.key === 'r') why.current?.focus();
    else if (event.key === 'e') card.current!.querySelector('textarea')?.focus();
    else return;
    event.preventDefault();
  };
  return (
    <article ref={card} class={`approval ${chosen ? 'chosen' : ''}`} tabIndex={0} onFocus={choose} onKeyDown={key} aria-label={`${plain(nameOf(each))} waits`}>
      <header><span class="tag">{each.kind}</span> <b><code><Shown text={nameOf(each)} /></code></b>
        <a href={`#/session/${each.session_id}`}><code>{each.session_id.slice(0, 12)}</code></a> <small>waits {ago(each.waited_ms / 1000)}</small></header>
      {(each.reason || each.rule) && <p>Why: <Shown text={[each.rule, each.reason].filter(Boolean).join(': ')} /></p>}
      <Change each={each} args={parsed(args) ?? each.args} />
      <label>Arguments{may('approve') ? ', which you may change' : ''}
        <textarea ref={field} spellcheck={false} rows={opened ? lines : LONG_LINES} readOnly={!may('approve')} value={args} onInput={(event) => setArgs(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === 'Escape') card.current?.focus(); }} /></label>
      {whole !== JSON.stringify(each.args, null, 2) && <p class="problem">The arguments contain characters that are not visible. They are written by their numbers here.</p>}
      {args !== plain(args) && <p class="problem">The arguments contain invisible characters: <Shown text={args} /></p>}
      {may('approve') && <p class="buttons">
        <button class="main" disabled={busy} onClick={clicked(() => accept(false))}>Accept <kbd>a</kbd></button>
        <button disabled={busy} onClick={clicked(() => accept(true))} title="also every later call of this tool in this session">Always <kbd>A</kbd></button>
        <input ref={why} placeholder="reason" aria-label="Reason to reject" value={reason} onInput={(event) => setReason(event.currentTarget.value)}
          onKeyDown={(event) => { if (event.key === 'Enter') reject(); if (event.key === 'Escape') card.current?.focus(); }} />
        <button disabled={busy} onClick={clicked(reject)}>Reject <kbd>r</kbd></button></p>}
    </article>
  );
}

export function ApprovalsPage(): JSX.Element {
  const list = waiting.value, [at, setAt] = useState(''), fresh = useRef(true);
  const chosen = list.find((each) => each.request_id === at);
  // One is chosen by the person, but for the first of all. A call that takes the place of one that was withdrawn, at once or a while later, must
  // not get the keys that were meant for that.
  useEffect(() => {
    if (!fresh.current || !list.length) return;
    fresh.current = false;
    setAt(list[0].request_id);
  }, [list]);
  const next = (of: Waiting): void => {
    const place = list.indexOf(of);
    setAt((list[place + 1] ?? list[place - 1])?.request_id ?? '');
  };
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      const step = event.key === 'j' || event.key === 'ArrowDown' ? 1 : event.key === 'k' || event.key === 'ArrowUp' ? -1 : 0;
      if (!step || /^(TEXTAREA|INPUT|SELECT)$/.test((event.target as Element).tagName) || !waiting.value.length) return;
      const now = waiting.value.findIndex((each) => each.request_id === at);
      setAt(waiting.value[Math.min(Math.max(now + step, 0), waiting.value.length - 1)].request_id);
      event.preventDefault();
    };
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, [at]);
  return (
    <Page title="Approvals" tools={'Notification' in window && Notification.permission === 'default' &&
      <p class="buttons"><button onClick={() => void Notification.requestPermission()}>Notify me</button></p>}>
      <p class="hint"><kbd>j</kbd> <kbd>k</kbd> move, <kbd>a</kbd> accepts, <kbd>A</kbd> accepts always, <kbd>e</kbd> changes the arguments, <kbd>r</kbd> rejects.</p>
      <div aria-live="polite">{!list.length && <p class="hint">Nothing waits.</p>}</div>
      {list.map((each) => <Card key={each.request_id} each={each} chosen={each === chosen} choose={() => setAt(each.request_id)} answered={() => next(each)} />)}
    </Page>
  );
}
