// All sessions, live: who has them, what they run, what they take.
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { ask, may } from './api';
import { plain, Shown, size } from './text';
import { act, ago, Page, Problem, type Session, usePolled, Waiting } from './ui';

const SHOWN = 100;

/** What confined the code of its cells; fetched when somebody opens it. */
function Receipt({ session }: { session: Session }): JSX.Element {
  const [open, setOpen] = useState(false), [found, problem] = usePolled<{ receipt: unknown }>(open ? `/v1/sessions/${session.session_id}` : null, 0, String(session.runs));
  if (!session.isolation) return <small>no cell yet</small>;
  return (
    <details class="receipt" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary aria-label={plain(`isolation: ${session.isolation}, receipt of ${session.session_id.slice(0, 12)}`)}><small>isolation: <Shown text={session.isolation} /></small></summary>
      <Problem error={problem} />{found && <pre tabIndex={0}><Shown text={JSON.stringify(found.receipt, null, 1)} /></pre>}
    </details>
  );
}

function Row({ session, refresh }: { session: Session; refresh: () => void }): JSX.Element {
  const path = `/v1/sessions/${session.session_id}`;
  const change = (work: () => Promise<unknown>, done: string): void => { void act(work, done).then(refresh); };
  return (
    <tr>
      <td><a href={`#/session/${session.session_id}`}><code>{session.session_id.slice(0, 12)}</code></a>
        {session.parent && <small> of {session.parent.slice(0, 8)}</small>}</td>
      <td><Shown text={session.owner} /><br /><small><Shown text={session.client} /></small></td>
      <td>{session.executor}<Receipt session={session} /></td>
      <td class="number">{size(session.memory_bytes)}</td>
      <td class="number">{session.runs}</td>
      <td class="clip">{session.running ? <><span class="tag run">{ago(session.running.seconds)}</span> <code><Shown text={session.running.code} /></code></>
        : session.state === 'busy' ? <span class="tag run">busy</span> : <small>idle {ago(session.idle_seconds)}</small>}</td>
      {may('run') && <td class="buttons">
        <button disabled={session.state !== 'busy'} aria-label={`Interrupt ${session.session_id.slice(0, 12)}`}
          onClick={() => change(() => ask('POST', `${path}/interrupt`), 'Interrupted.')}>Interrupt</button>
        <button aria-label={`Reset ${session.session_id.slice(0, 12)}`}
          onClick={() => confirm('Reset the session? Its variables are lost.') && change(() => ask('POST', `${path}/reset`), 'Reset.')}>Reset</button>
        <button aria-label={`End ${session.session_id.slice(0, 12)}`}
          onClick={() => confirm('End the session?') && change(() => ask('DELETE', path), 'Ended.')}>End</button>
      </td>}
    </tr>
  );
}

export function SessionsPage(): JSX.Element {
  const [found, problem, refresh] = usePolled<{ sessions: Session[] }>(`/v1/sessions${may('admin') ? '?all=true' : ''}`, 2000);
  const [filter, setFilter] = useState(''), [most, setMost] = useState(SHOWN);
  const list = useMemo(() => {
    const words = filter.toLowerCase();
    return (found?.sessions ?? []).filter((each) => !words || `${each.session_id} ${each.owner} ${each.client} ${each.running?.code ?? ''}`.toLowerCase().includes(words))
      .sort((a, b) => Number(b.state === 'busy') - Number(a.state === 'busy') || a.idle_seconds - b.idle_seconds);
  }, [found, filter]);
  const open = (): void => {
    void act(async () => { location.hash = `#/session/${(await ask<Session>('POST', '/v1/sessions', {})).session_id}`; });
  };
  return (
    <Page title="Sessions" tools={<p class="buttons">
      <input type="search" placeholder="Filter" aria-label="Filter sessions" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
      {may('run') && <button class="main" onClick={open}>New session</button>}</p>}>
      <Problem error={problem} />
      {!found ? !problem && <Waiting /> : <>
        <p class="facts" aria-live="polite">{list.length} of {found.sessions.length} sessions, {found.sessions.filter((each) => each.state === 'busy').length} busy</p>
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of sessions"><table>
          <thead><tr><th>session</th><th>who</th><th>executor</th><th class="number">memory</th><th class="number">cells</th><th>now</th>{may('run') && <th>actions</th>}</tr></thead>
          <tbody>{list.slice(0, most).map((session) => <Row key={session.session_id} session={session} refresh={refresh} />)}</tbody>
        </table></div>
        {list.length > most && <button onClick={() => setMost(most + 400)}>Show {Math.min(400, list.length - most)} more</button>}
        {!found.sessions.length && <p class="hint">There are no sessions.</p>}
      </>}
    </Page>
  );
}
