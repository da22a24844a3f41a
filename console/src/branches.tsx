// The tree of points and forks of a session, the files in its layer, and a comparison of two branches.
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { ask, may, me } from './api';
import { Diff, plain, Shown, size } from './text';
import { act, ago, Page, Problem, type Session, usePolled, type Variable, variablesOf } from './ui';

interface Point { name: string; cell: number; automatic: boolean; age_ms: number; memory_bytes: number | null; }
interface Changed { path: string; change: string; type: string; size?: number; diff?: string; binary?: boolean; protected?: boolean; conflict?: boolean; }
interface Changes { files: Changed[]; added: number; changed: number; deleted: number; truncated: boolean; }

const MOST_WITH_POINTS = 40; // sessions of a tree whose points are fetched

/** The points of one session of the tree: back to one, or on from it in a session of its own. */
function PointsOf({ id, version }: { id: string; version: string }): JSX.Element | null {
  const [found, , refresh] = usePolled<{ points: Point[] }>(`/v1/sessions/${id}/checkpoints`, 5000, version), path = `/v1/sessions/${id}`;
  const change = (work: () => Promise<unknown>, done: string): void => { void act(work, done).then(refresh); };
  const fork = (name: string): void => {
    void act(async () => { location.hash = `#/session/${(await ask<Session>('POST', `${path}/fork`, { point: name })).session_id}`; });
  };
  if (!found?.points.length) return null;
  return (
    <ul class="points">{found.points.map((point) => {
      const name = point.automatic ? `before cell ${point.cell + 1}` : point.name, words = plain(name);
      return (
        <li key={point.name}><span class="point"><Shown text={name} /></span> <small>{point.automatic ? '' : `cell ${point.cell}, `}{point.age_ms < 1000 ? 'now' : `${ago(point.age_ms / 1000)} ago`}, {size(point.memory_bytes)}</small>
          {may('run') && <span class="buttons"><button aria-label={`Rewind to ${words}`} onClick={() => confirm(`Rewind to “${words}”? Later changes of variables are lost.`) &&
            change(() => ask('POST', `${path}/rewind`, { name: point.name }), 'Rewound.')}>Rewind</button>
          <button aria-label={`Fork from ${words}`} onClick={() => fork(point.name)}>Fork</button>
          <button aria-label={`Drop ${words}`} onClick={() => change(() => ask('DELETE', `${path}/checkpoints/${encodeURIComponent(point.name)}`), 'Dropped.')}>Drop</button></span>}
        </li>);
    })}</ul>
  );
}

function Tree({ all, id, here, seen, kept }: { all: Session[]; id: string; here: string; seen: Set<string>; kept: string[] }): JSX.Element {
  seen.add(id);
  const children = all.filter((each) => each.parent === id && !seen.has(each.session_id)), points = all.find((each) => each.session_id === id)?.points ?? 0;
  if (points || id === here) kept.push(id);
  const shown = id === here || (points > 0 && kept.length <= MOST_WITH_POINTS);
  return (
    <li>{id === here ? <b aria-current="true"><code>{id.slice(0, 12)}</code></b> : <a href={`#/session/${id}`}><code>{id.slice(0, 12)}</code></a>}
      {shown ? <PointsOf id={id} version={String(points)} /> : points > 0 && <small> {points} points</small>}
      {children.length > 0 && <ul>{children.map((each) => <Tree key={each.session_id} all={all} id={each.session_id} here={here} seen={seen} kept={kept} />)}</ul>}</li>
  );
}

function rootOf(all: Session[], id: string): string {
  const byId = new Map(all.map((each) => [each.session_id, each]));
  let at = id;
  for (let n = 0; n < 1000; n++) {
    const above = byId.get(at)?.parent;
    if (!above || !byId.has(above)) break;
    at = above;
  }
  return at;
}

function Keep({ id, kept }: { id: string; kept: () => void }): JSX.Element {
  const [name, setName] = useState('');
  return (
    <form class="line" onSubmit={(event) => {
      event.preventDefault();
      void act(() => ask('POST', `/v1/sessions/${id}/checkpoints`, { name }), 'Kept.').then(kept);
      setName('');
    }}><input required maxLength={200} value={name} onInput={(event) => setName(event.currentTarget.value)} aria-label="Name of a new point" placeholder="name of a point" />
      <button>Keep</button></form>
  );
}

/** What changed in a file, below its name: the diff need not name it again. */
function Content({ file }: { file: Changed }): JSX.Element {
  const head = `--- a/${file.path}\n+++ b/${file.path}\n`, diff = file.diff?.replace(/\n$/, '');
  if (!diff) return <p class="hint">{file.binary ? 'binary ' : ''}{file.type}, {size(file.size)}</p>;
  return <Diff text={diff.startsWith(head) ? diff.slice(head.length) : diff} />;
}

function Files({ id }: { id: string }): JSX.Element {
  const [found, problem, refresh] = usePolled<Changes>(`/v1/sessions/${id}/files/diff`, 5000), [chosen, setChosen] = useState<string[]>([]);
  const toggle = (path: string): void => setChosen(chosen.includes(path) ? chosen.filter((each) => each !== path) : [...chosen, path]);
  const commit = (): void => {
    void act(() => ask('POST', `/v1/sessions/${id}/files/commit`, chosen.length ? { paths: chosen } : {}), 'Committed.').then(refresh);
  };
  return (
    <details class="side" open>
      <summary>Files in the layer {found ? `(${found.files.length})` : ''}</summary>
      <Problem error={problem} />
      {found?.files.map((file) => <details class="file">
        <summary>{may('approve') && <input type="checkbox" aria-label={plain(`Choose ${file.path}`)} checked={chosen.includes(file.path)} onClick={(event) => event.stopPropagation()} onChange={() => toggle(file.path)} />}
          <span class={`tag ${file.change}`}>{file.change}</span> <Shown text={file.path} />{file.conflict && <span class="tag warn">changed outside</span>}</summary>
        <Content file={file} />
      </details>)}
      {found?.truncated && <p class="problem">Not everything that changed is shown here.</p>}
      {found && found.files.length > 0 && <p class="buttons">
        {may('approve') && <button onClick={commit}>Commit {chosen.length || 'all'}</button>}
        {may('run') && <button onClick={() => confirm('Drop all changes of files?') && act(() => ask('POST', `/v1/sessions/${id}/files/discard`), 'Dropped.').then(refresh)}>Discard</button>}
      </p>}
    </details>
  );
}

/** One file in one of two branches, against what the workspace has. */
function FileOf({ file, branch }: { file?: Changed; branch: JSX.Element }): JSX.Element {
  return <div><p>{branch} {file ? <span class={`tag ${file.change}`}>{file.change}</span> : <small>as in the workspace</small>}</p>{file && <Content file={file} />}</div>;
}

/** Variables and files of two sessions, where they differ. */
export function ComparePage({ left, right }: { left: string; right: string }): JSX.Element {
  const [foundA, problemA] = usePolled<unknown>(`/v1/sessions/${left}/variables`, 0), [foundB, problemB] = usePolled<unknown>(`/v1/sessions/${right}/variables`, 0);
  const a = foundA ? variablesOf(foundA) : null, b = foundB ? variablesOf(foundB) : null;
  const layers = !!me.value?.layers, [filesA, troubleA] = usePolled<Changes>(layers ? `/v1/sessions/${left}/files/diff` : null, 0), [filesB, troubleB] = usePolled<Changes>(layers ? `/v1/sessions/${right}/files/diff` : null, 0);
  const words = (each?: Variable): string => (each ? `${each.type} ${each.preview}` : 'not defined');
  const of = (list: Variable[] | null, name: string): Variable | undefined => list?.find((each) => each.name === name);
  const file = (list: Changed[] | undefined, path: string): Changed | undefined => list?.find((each) => each.path === path);
  const names = [...new Set([...(a ?? []), ...(b ?? [])].map((each) => each.name))].sort().filter((name) => words(of(a, name)) !== words(of(b, name)));
  const paths = [...new Set([...(filesA?.files ?? []), ...(filesB?.files ?? [])].map((each) => each.path))].sort()
    .filter((path) => JSON.stringify(file(filesA?.files, path)) !== JSON.stringify(file(filesB?.files, path)));
  const heads = [left, right].map((id) => <a href={`#/session/${encodeURIComponent(id)}`}><code><Shown text={id.slice(0, 12)} /></code></a>);
  return (
    <Page title="Compare branches">
      <p>{heads[0]} with {heads[1]}</p>
      <Problem error={problemA ?? problemB ?? troubleA ?? troubleB} />
      <h2>Variables that differ</h2>
      {a && b && !names.length && <p class="hint">None.</p>}
      {names.length > 0 && <div class="scroll" tabIndex={0} role="region" aria-label="Variables"><table><thead><tr><th>name</th>{[left, right].map((id) => <th><Shown text={id.slice(0, 12)} /></th>)}</tr></thead>
        <tbody>{names.map((name) => <tr><td><code><Shown text={name} /></code></td>
          <td class="minus"><Shown text={words(of(a, name)).slice(0, 300)} /></td><td class="plus"><Shown text={words(of(b, name)).slice(0, 300)} /></td></tr>)}</tbody></table></div>}
      {(filesA?.truncated || filesB?.truncated) && <p class="problem">Not everything that changed is compared here.</p>}
      {filesA && filesB && <><h2>Files that differ</h2>{!paths.length && <p class="hint">None.</p>}{paths.map((path) => <section aria-label={plain(path)}>
        <h3><code><Shown text={path} /></code></h3><div class="twice"><FileOf file={file(filesA.files, path)} branch={heads[0]} /><FileOf file={file(filesB.files, path)} branch={heads[1]} /></div></section>)}</>}
    </Page>
  );
}

export function Branches({ id, session }: { id: string; session: Session }): JSX.Element {
  const [found, , refresh] = usePolled<{ sessions: Session[] }>(`/v1/sessions${may('admin') ? '?all=true' : ''}`, 4000), [other, setOther] = useState('');
  const all = found?.sessions ?? [session], related = all.filter((each) => each.session_id !== id && rootOf(all, each.session_id) === rootOf(all, id));
  return (
    <>
      <details class="side" open>
        <summary>Points and forks</summary>
        <ul class="tree"><Tree all={all} id={rootOf(all, id)} here={id} seen={new Set()} kept={[]} /></ul>
        {may('run') && <Keep id={id} kept={refresh} />}
        {may('run') && <p class="buttons"><button onClick={() => act(async () => { location.hash = `#/session/${(await ask<Session>('POST', `/v1/sessions/${id}/fork`, {})).session_id}`; })}>Fork</button>
          <button onClick={() => act(() => ask('POST', `/v1/sessions/${id}/rewind`, { cells: 1 }), 'Undone.')}>Undo a cell</button></p>}
        {related.length > 0 && <form class="line" onSubmit={(event) => {
          event.preventDefault();
          location.hash = `#/compare/${id}/${other || related[0].session_id}`;
        }}><label>Compare with <select value={other || related[0].session_id} onChange={(event) => setOther(event.currentTarget.value)}>
          {related.map((each) => <option value={each.session_id}>{each.session_id.slice(0, 12)}</option>)}</select></label><button>Compare</button></form>}
      </details>
      {me.value?.layers && <Files id={id} />}
    </>
  );
}
