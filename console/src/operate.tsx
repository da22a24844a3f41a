// For who runs the server: policy with a try-out, audit log, metrics, executors.
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { ask, request } from './api';
import { Shown } from './text';
import { dark } from './theme';
import { Page, Problem, usePolled, Waiting } from './ui';

function TryOut(): JSX.Element {
  const [form, setForm] = useState({ kind: 'tool', tool: '', args: '{}', principal: 'code' }), [verdict, setVerdict] = useState<any>(null), [error, setError] = useState<Error | null>(null);
  const set = (name: string) => (event: Event): void => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  const judge = async (event: Event): Promise<void> => {
    event.preventDefault();
    setError(null);
    setVerdict(null);
    try {
      const [tool, ...rest] = form.tool.split('.');
      setVerdict(await ask('POST', '/v1/policy/try', { kind: form.kind, tool, ...(rest.length ? { callable: rest.join('.') } : {}), args: JSON.parse(form.args || '{}'), principal: form.principal }));
    } catch (failure) {
      setError(failure as Error);
    }
  };
  return (
    <form class="line" onSubmit={judge} aria-label="Try the policy">
      <label>Kind <select value={form.kind} onChange={set('kind')}>{['tool', 'shell', 'install', 'remove', 'workflow', 'artifact', 'server'].map((each) => <option>{each}</option>)}</select></label>
      <label>Tool <input required placeholder="tool.callable" value={form.tool} onInput={set('tool')} /></label>
      <label>Arguments <input value={form.args} onInput={set('args')} /></label>
      <label>Caller <select value={form.principal} onChange={set('principal')}>{['code', 'mcp', 'http', 'host'].map((each) => <option>{each}</option>)}</select></label>
      <button class="main">Try</button>
      <div role="status">{verdict && <p><span class={`tag ${verdict.decision}`}>{verdict.decision}</span> {verdict.rule ? <>rule {verdict.rule} (line {verdict.line}) <b><Shown text={verdict.name ?? ''} /></b></> : 'the default'}
        {verdict.reason && <>: <Shown text={verdict.reason} /></>}</p>}</div>
      <Problem error={error} />
    </form>
  );
}

export function PolicyPage(): JSX.Element {
  const [found, problem] = usePolled<{ source: string | null; default: string; rules: number }>('/v1/policy', 0);
  return (
    <Page title="Policy"><Problem error={problem} />
      {found && <><h2>Try a call</h2><TryOut /><h2>Rules</h2>
        {found.source === null ? <p>There is no policy file. Every call: <span class={`tag ${found.default}`}>{found.default}</span></p>
          : <pre class="source" aria-label="policy"><Shown text={found.source.replace(/\n$/, '').split('\n').map((line, i) => `${String(i + 1).padStart(3)}  ${line}`).join('\n')} /></pre>}</>}
    </Page>
  );
}

const SHORT = 100; // characters

/** The end of a long text is one click away. */
function Whole({ short, record }: { short: string; record: unknown }): JSX.Element {
  const [open, setOpen] = useState(false);
  return (
    <details class="record" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary><code><Shown text={short.length > SHORT ? `${short.slice(0, SHORT)}…` : short} /></code></summary>
      {open && <pre tabIndex={0}><Shown text={JSON.stringify(record, null, 1)} /></pre>}
    </details>
  );
}

export function AuditPage(): JSX.Element {
  const [filter, setFilter] = useState({ session: '', tool: '', decision: '', since: '' });
  const query = Object.entries(filter).filter(([, value]) => value).map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join('');
  const [found, problem] = usePolled<{ records: any[]; unreadable: number }>(`/v1/audit?last=300${query}`, 4000);
  const set = (name: string) => (event: Event): void => setFilter({ ...filter, [name]: (event.currentTarget as HTMLInputElement).value });
  return (
    <Page title="Audit log" tools={<form class="line" onSubmit={(event) => event.preventDefault()}>
      <input aria-label="Session" placeholder="session" onChange={set('session')} /><input aria-label="Tool" placeholder="tool, * and ?" onChange={set('tool')} />
      <select aria-label="Decision" onChange={set('decision')}>{['', 'allow', 'deny', 'accepted', 'edited', 'rejected', 'timeout'].map((each) => <option value={each}>{each || 'all decisions'}</option>)}</select>
      <input aria-label="Since" placeholder="since: 15m, 2h, 2026-11-15" onChange={set('since')} /></form>}>
      <Problem error={problem} />
      {found && <div class="scroll" tabIndex={0} role="region" aria-label="Records"><table>
        <thead><tr><th>time</th><th>session</th><th>call</th><th>who</th><th>decision</th><th>outcome</th><th>arguments or error</th></tr></thead>
        <tbody>{[...found.records].reverse().map((each) => <tr key={`${each.time} ${each.request ?? ''} ${each.callable ?? ''}`}><td class="time"><Shown text={String(each.time ?? '').replace('T', ' ')} /></td><td><code><Shown text={String(each.session ?? '').slice(0, 8)} /></code></td>
          <td><Shown text={`${each.tool ?? each.kind ?? ''}${each.callable ? `.${each.callable}` : ''}`} /></td><td class="time"><Shown text={[each.principal, each.client].filter(Boolean).join(' ')} /></td>
          <td><span class={`tag ${each.decision === 'allow' || each.decision === 'accepted' ? 'allow' : each.decision === 'edited' ? 'ask' : 'deny'}`}><Shown text={String(each.decision)} /></span></td>
          <td><Shown text={String(each.code ?? each.outcome ?? '')} /></td><td class="record"><Whole short={each.error ? String(each.error) : JSON.stringify(each.args ?? {})} record={each} /></td></tr>)}</tbody>
      </table></div>}
      {found && !found.records.length && <p class="hint">No records.</p>}
    </Page>
  );
}

const helps = new Map<string, string>(); // what a metric counts

/** Prometheus' text: the values of metrics without labels, and sums over those with. */
function parseMetrics(text: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const line of text.split('\n')) {
    const about = /^# HELP ([a-z_]+) (.*)$/i.exec(line);
    if (about) helps.set(about[1], about[2]);
    const match = /^([a-z_]+)(\{[^}]*\})? ([0-9.e+-]+)$/i.exec(line);
    if (match && !match[1].endsWith('_bucket')) found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[3]));
  }
  return found;
}

const KEPT = 300; // values of each metric
const EVERY = 2000; // ms between two values
const SHOWN_SECONDS = 60; // at least
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
// What was read so far, also while another page was shown.
const kept: { times: number[]; series: Map<string, number[]> } = { times: [], series: new Map() };

function Plot({ name, times, values }: { name: string; times: number[]; values: number[] }): JSX.Element {
  const place = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue('--soft'), line = style.getPropertyValue('--main');
    const grid = { stroke: style.getPropertyValue('--line'), width: 0.5 };
    const box = place.current!, made = plot.current = new uPlot({
      width: box.clientWidth || 300, height: 110, legend: { show: false }, cursor: { show: false },
      scales: {
        x: { range: (of) => { const xs = of.data[0], high = xs[xs.length - 1] ?? 0; return [Math.min(xs[0] ?? high, high - SHOWN_SECONDS), high]; } },
        y: { range: (_of, _low, high) => uPlot.rangeNum(0, high || 1, 0.1, true) },
      },
      axes: [{ stroke: ink, grid: { show: false }, ticks: grid, size: 26, space: 70, values: (_of, splits) => splits.map((at) => new Date(at * 1000).toTimeString().slice(0, 8)) },
        { stroke: ink, grid, ticks: grid, size: 52, values: (_of, splits) => splits.map((each) => short.format(each)) }],
      series: [{}, { stroke: line, width: 1.5 }],
    }, [times, values], box);
    const watcher = new ResizeObserver(() => { if (box.clientWidth) made.setSize({ width: box.clientWidth, height: 110 }); });
    watcher.observe(box);
    return () => { watcher.disconnect(); made.destroy(); };
  }, []);
  useEffect(() => plot.current?.setData([times, values]), [times[times.length - 1]]);
  return <figure><figcaption><code>{name.replace(/^workcell_/, '')}</code> <b>{Number((values[values.length - 1] ?? 0).toPrecision(6))}</b><br /><small><Shown text={helps.get(name) ?? ''} /></small></figcaption><div ref={place} role="img" aria-label={`${name} over time`} /></figure>;
}

async function readMetrics(): Promise<void> {
  const found = parseMetrics(await (await request('GET', '/metrics')).text()), { times, series } = kept;
  times.push(Date.now() / 1000);
  for (const [name, value] of found) {
    const list = series.get(name) ?? Array<number>(times.length - 1).fill(value);
    list.push(value);
    series.set(name, list);
  }
  for (const [name, list] of series) if (!found.has(name)) list.push(list[list.length - 1]); // the server no longer names it
  for (const list of [times, ...series.values()]) if (list.length > KEPT) list.shift();
}

export function MetricsPage(): JSX.Element {
  const [error, setError] = useState<Error | null>(null), [, setTurn] = useState(0), [words, setWords] = useState('');
  useEffect(() => {
    let alive = true, next = 0;
    const look = async (): Promise<void> => {
      try {
        await readMetrics();
        setError(null);
      } catch (failure) {
        setError(failure as Error);
      }
      if (!alive) return;
      setTurn((each) => each + 1);
      next = setTimeout(look, EVERY) as unknown as number;
    };
    void look();
    return () => { alive = false; clearTimeout(next); };
  }, []);
  const { times, series } = kept;
  return (
    <Page title="Metrics" tools={<input type="search" aria-label="Filter metrics" placeholder="Filter" value={words} onInput={(event) => setWords(event.currentTarget.value)} />}><Problem error={error} />
      {!times.length ? !error && <Waiting /> : <div class="plots">{[...series].filter(([name]) => name.includes(words)).map(([name, values]) => <Plot key={`${name} ${dark.value}`} name={name} times={[...times]} values={[...values]} />)}</div>}
    </Page>
  );
}

export function DoctorPage(): JSX.Element {
  const [found, problem] = usePolled<{ version: string; executors: any[] }>('/v1/doctor', 0);
  return (
    <Page title="Doctor"><Problem error={problem} />
      {!found ? !problem && <Waiting /> : <><p class="facts">Workcell {found.version}</p>
        <div class="scroll" tabIndex={0} role="region" aria-label="Executors"><table><thead><tr><th>executor</th><th>isolation</th><th>here</th><th>why, and what to do</th></tr></thead>
          <tbody>{found.executors.map((each) => <tr><td><code><Shown text={each.name} /></code></td><td><Shown text={`${each.isolation} ${each.level}`} /></td><td><span class={`tag ${each.available ? 'allow' : 'deny'}`}>{each.available ? 'works' : 'does not work'}</span></td>
            <td><Shown text={[each.reason, each.advice].filter(Boolean).join('; ')} />{each.fix && <pre><Shown text={each.fix} /></pre>}</td></tr>)}</tbody></table></div></>}
    </Page>
  );
}
