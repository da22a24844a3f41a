// What code can use: tools with a form to call one, workflows, artifacts, packages.
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { ask, may, me, request } from './api';
import { Python } from './code';
import { Parts, pretty } from './output';
import { compare, Diff, fileName, plain, Shown, size, when } from './text';
import { act, Page, Problem, type Session, usePolled, Waiting } from './ui';

interface Parameter { name: string; type: string; required: boolean; default: unknown; description: string; }
interface Callable { name: string; description?: string; parameters?: Parameter[]; }
interface Tool { name: string; description: string; adapter?: string; callables?: Callable[]; }

/** A list on the left, what was chosen on the right. */
function Chooser<T extends { name: string }>({ items, about, children }: { items: T[]; about: string; children: (item: T) => JSX.Element }): JSX.Element {
  const [name, setName] = useState(items[0]?.name), item = items.find((each) => each.name === name) ?? items[0];
  if (!items.length) return <p class="hint">There are no {about}.</p>;
  return (
    <div class="list">
      <ul aria-label={about}>{items.map((each) => <li><button aria-current={each === item ? 'true' : undefined} onClick={() => setName(each.name)}><code><Shown text={each.name} /></code></button></li>)}</ul>
      <div>{item && children(item)}</div>
    </div>
  );
}

/** As JSON, but for texts; where both may be meant, JSON if it is that. */
function valueOf(text: string, type: string): unknown {
  if (type === 'string') return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    if (type === 'any' || type.includes('string')) return text;
    throw error;
  }
}

function Field({ field, value, set }: { field: Parameter; value: string; set: (value: string) => void }): JSX.Element {
  if (field.type === 'boolean') {
    return <select value={value} required={field.required} onChange={(event) => set(event.currentTarget.value)}>{['', 'true', 'false'].map((each) => <option value={each}>{each || '–'}</option>)}</select>;
  }
  return <input value={value} required={field.required} placeholder={field.required || field.default === null ? '' : plain(JSON.stringify(field.default))} onInput={(event) => set(event.currentTarget.value)} />;
}

function CallForm({ tool, callable }: { tool: string; callable: Callable }): JSX.Element {
  const fields = callable.parameters ?? [];
  const [values, setValues] = useState(new Map<string, string>()), [answer, setAnswer] = useState<any>(null), [error, setError] = useState<Error | null>(null), [busy, setBusy] = useState(false);
  const call = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    setAnswer(null);
    try {
      const args = Object.fromEntries(fields.filter(({ name }) => values.get(name)).map(({ name, type }) => [name, valueOf(values.get(name)!, type)]));
      setAnswer(await ask('POST', `/api/tools/${encodeURIComponent(callable.name && callable.name !== tool ? `${tool}.${callable.name}` : tool)}/call`, { args }));
    } catch (failure) {
      setError(failure as Error);
    }
    setBusy(false);
  };
  return (
    <form onSubmit={call}>
      {callable.description && <p><Shown text={callable.description} /></p>}
      {fields.map((field) => <label class="field"><code><Shown text={field.name} /></code>{field.required ? ' *' : ''} <small><Shown text={[field.type, field.description].filter(Boolean).join(' · ')} /></small>
        <Field field={field} value={values.get(field.name) ?? ''} set={(value) => setValues(new Map(values).set(field.name, value))} /></label>)}
      {may('run') && <p class="buttons"><button class="main" disabled={busy}>{busy ? 'Runs…' : 'Call'}</button></p>}
      <details><summary>Schema</summary><pre><Shown text={JSON.stringify(fields, null, 2)} /></pre></details>
      <Problem error={error} />
      {answer && <pre aria-label="result" class="value"><Shown text={typeof answer.value === 'string' ? answer.value : JSON.stringify(answer.value ?? answer.parts, null, 2)} /></pre>}
    </form>
  );
}

interface Login { server: string; needed: boolean; link?: string; }

/** MCP servers at which a person has to log in. The page behind the link asks for the token of this server once more (docs/mcp.md). */
function Logins(): JSX.Element | null {
  const [found, problem] = usePolled<{ logins: Login[] }>('/v1/logins', 5000);
  const waiting = (found?.logins ?? []).filter((each) => each.needed);
  return (
    <><Problem error={problem} />{waiting.length > 0 && <section class="note" aria-label="logins"><h2>These servers wait for a login</h2><ul>
      {waiting.map(({ server, link }) => <li key={server}><code><Shown text={server} /></code> {!link || !/^https?:\/\//.test(link) ? <span class="hint">log in with workcell tools login, or start the server with --public-url</span>
        : may('approve') ? <a href={link} target="_blank" rel="noopener noreferrer" aria-label={plain(`Log in at ${server}`)}>Log in</a> : <span class="hint">needs a token with the scope approve</span>}</li>)}</ul></section>}</>
  );
}

export function ToolsPage(): JSX.Element {
  const [found, problem] = usePolled<Tool[]>('/api/tools', 10000);
  return (
    <Page title="Tools"><Problem error={problem} /><Logins />
      {!found ? !problem && <Waiting /> : <Chooser items={found} about="tools">{(tool) => <>
        <h2><code><Shown text={tool.name} /></code> {tool.adapter && <span class="tag">{tool.adapter}</span>}</h2><p><Shown text={tool.description ?? ''} /></p>
        {tool.callables?.length ? tool.callables.map((each) => <details class="side" key={`${tool.name}.${each.name}`} open={tool.callables!.length === 1}><summary><code><Shown text={each.name} /></code></summary><CallForm tool={tool.name} callable={each} /></details>)
          : <CallForm key={tool.name} tool={tool.name} callable={{ name: tool.name }} />}</>}</Chooser>}
    </Page>
  );
}

interface Workflow { name: string; description: string; params: Record<string, unknown>; source?: string; }

interface Stored { time: string; client?: string; principal?: string; decision: string; outcome?: string; code?: string; callable: string; args?: { name?: string; source?: string }; }

/** As the audit log has them: who stored which source, and what was different from the one before. */
function Versions({ name }: { name: string }): JSX.Element | null {
  const [found, problem] = usePolled<{ records: Stored[] }>('/v1/audit?tool=workflows&last=1000', 0);
  const list = (found?.records ?? []).filter((each) => each.args?.name === name && (each.code ?? each.outcome) === 'ok' && (each.callable === 'create' || each.callable === 'delete'));
  const versions = list.map((each, i) => ({ ...each, before: list.slice(0, i).findLast((one) => one.callable === 'create')?.args?.source ?? '' })).reverse();
  if (!versions.length) return <Problem error={problem} />;
  return (
    <details class="side"><summary>Versions ({versions.filter((each) => each.callable === 'create').length})</summary>
      {versions.map((each) => <details class="file"><summary><Shown text={when(each.time)} /> <small>by <Shown text={each.client ? `${each.client} (${each.principal})` : each.principal ?? '?'} /></small> {each.callable === 'delete' && <span class="tag deleted">deleted</span>}</summary>
        {each.callable === 'create' && (each.args?.source === undefined ? <p class="hint">The audit log does not have its source.</p> : <Diff text={compare(each.before, each.args.source)} />)}</details>)}
    </details>
  );
}

function WorkflowView({ name, changed }: { name: string; changed: () => void }): JSX.Element {
  const [found, problem] = usePolled<Workflow>(`/api/workflows/${encodeURIComponent(name)}`, 0), [args, setArgs] = useState('{}');
  const run = (): void => {
    void act(async () => {
      const given = JSON.parse(args), session = await ask<Session>('POST', '/v1/sessions', {});
      const words = Object.entries(given).map(([key, value]) => `, ${key}=json.loads(${JSON.stringify(JSON.stringify(value))})`).join('');
      await ask('POST', `/v1/sessions/${session.session_id}/runs`, { code: `import json\nworkflows.invoke(${JSON.stringify(name)}${words})` });
      location.hash = `#/session/${session.session_id}`;
    });
  };
  return (
    <><h2><code><Shown text={name} /></code></h2><Problem error={problem} />
      {found && <><p><Shown text={found.description} /></p>
        <details><summary>Parameters</summary><pre><Shown text={JSON.stringify(found.params, null, 2)} /></pre></details>
        <pre class="source" aria-label="source"><Python text={found.source ?? ''} /></pre>
        {may('admin') && me.value?.audit && <Versions name={name} />}</>}
      {may('run') && <div class="line"><label>Arguments <input value={args} onInput={(event) => setArgs(event.currentTarget.value)} /></label><button class="main" onClick={run}>Run</button>
        <button onClick={() => confirm(plain(`Delete ${name}?`)) && act(() => ask('DELETE', `/api/workflows/${encodeURIComponent(name)}`), 'Deleted.').then(changed)}>Delete</button></div>}</>
  );
}

export function WorkflowsPage(): JSX.Element {
  const [words, setWords] = useState('');
  const [found, problem, refresh] = usePolled<Workflow[]>(words ? `/api/workflows/search?query=${encodeURIComponent(words)}` : '/api/workflows', 10000);
  return (
    <Page title="Workflows" tools={<input type="search" aria-label="Search workflows" placeholder="Search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />}>
      <Problem error={problem} />
      {!found ? !problem && <Waiting /> : <Chooser items={found} about="workflows">{(each) => <WorkflowView key={each.name} name={each.name} changed={refresh} />}</Chooser>}
    </Page>
  );
}

interface Artifact { name: string; type?: string; description?: string; size?: number; created_at?: string; mime?: string; }

async function download(name: string): Promise<void> {
  const bytes = await (await request('GET', pathOf(name), undefined, { Accept: 'application/octet-stream' })).blob();
  const link = document.createElement('a');
  link.href = URL.createObjectURL(bytes);
  link.download = fileName(name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function pathOf(name: string): string {
  return `/api/artifacts/${name.split('/').map(encodeURIComponent).join('/')}`;
}

const PREVIEW = 1 << 20;

/** null: it is no text. */
function textOf(bytes: Uint8Array): string | null {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    return text.includes('\0') || text.startsWith('%PDF-') ? null : text;
  } catch {
    return null;
  }
}

function Preview({ artifact }: { artifact: Artifact }): JSX.Element | null {
  const [shown, setShown] = useState<JSX.Element | null>(null), [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    void (async () => {
      if ((artifact.size ?? 0) > PREVIEW) { setShown(<p class="hint">Too large for a preview.</p>); return; }
      const bytes = new Uint8Array(await (await request('GET', pathOf(artifact.name), undefined, { Accept: 'application/octet-stream' })).arrayBuffer());
      const kind = /\.(png|jpe?g|gif|webp)$/i.exec(artifact.name);
      if (kind) {
        let text = '';
        for (const byte of bytes) text += String.fromCharCode(byte);
        setShown(<Parts parts={[{ type: `image/${kind[1].toLowerCase().replace('jpg', 'jpeg')}`, base64: btoa(text) }]} alt={artifact.name} />);
        return;
      }
      const text = textOf(bytes);
      if (text === null) { setShown(<p class="hint">No text and no picture: download it to see it.</p>); return; }
      const type = /\.html?$/i.test(artifact.name) ? 'text/html' : /\.md$/i.test(artifact.name) ? 'text/markdown' : /\.svg$/i.test(artifact.name) ? 'image/svg+xml' : 'text/plain';
      setShown(<Parts parts={[{ type, text: type === 'text/plain' ? pretty(text) : text }]} alt={artifact.name} />);
    })().catch(setError);
  }, [artifact.name]);
  return <><Problem error={error} />{shown}</>;
}

export function ArtifactsPage(): JSX.Element {
  const [found, problem, refresh] = usePolled<Artifact[]>('/api/artifacts', 5000);
  return (
    <Page title="Artifacts"><Problem error={problem} />
      {!found ? !problem && <Waiting /> : <Chooser items={found} about="artifacts">{(each) => <>
        <h2><code><Shown text={each.name} /></code></h2><p class="facts"><Shown text={[each.type, each.size === undefined ? '' : size(each.size), when(each.created_at)].filter(Boolean).join(' · ')} /></p>
        {each.description && <p><Shown text={each.description} /></p>}
        <p class="buttons"><button onClick={() => act(() => download(each.name))}>Download</button>
          {may('run') && <button onClick={() => confirm(plain(`Delete ${each.name}?`)) && act(() => ask('DELETE', pathOf(each.name)), 'Deleted.').then(refresh)}>Delete</button>}</p>
        <Preview key={each.name} artifact={each} /></>}</Chooser>}
    </Page>
  );
}

export function PackagesPage(): JSX.Element {
  const [found, problem, refresh] = usePolled<string[]>('/api/deps', 10000), [name, setName] = useState(''), [busy, setBusy] = useState(false);
  const change = (verb: string, spec: string): void => {
    setBusy(true);
    void act(async () => {
      const answer = await ask('POST', `/api/deps/${verb}`, { package: spec });
      if (answer?.failed?.length) throw new Error(`${answer.failed.join(', ')}: ${JSON.stringify(answer.errors ?? 'it failed')}`);
    }, 'Done.').then(() => { setBusy(false); refresh(); });
  };
  return (
    <Page title="Packages"><Problem error={problem} />
      {may('run') && <form class="line" onSubmit={(event) => { event.preventDefault(); change('add', name); setName(''); }}>
        <input required aria-label="Package to add" placeholder="package, as pip has it" value={name} onInput={(event) => setName(event.currentTarget.value)} /><button disabled={busy}>{busy ? 'Installs…' : 'Add'}</button></form>}
      {found && !found.length && <p class="hint">There are no packages.</p>}
      <table><tbody>{found?.map((spec) => <tr><td><code><Shown text={spec} /></code></td><td>{may('run') && <button disabled={busy} aria-label={plain(`Remove ${spec}`)} onClick={() => change('remove', spec)}>Remove</button>}</td></tr>)}</tbody></table>
    </Page>
  );
}
