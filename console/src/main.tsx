// The console: login, navigation, pages by the part of the address after '#'.
import { signal } from '@preact/signals';
import { render, type JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { login, logout, may, me, online, recognize } from './api';
import { ApprovalsPage, useInbox, waiting } from './approvals';
import { ComparePage } from './branches';
import { ArtifactsPage, PackagesPage, ToolsPage, WorkflowsPage } from './library';
import { NotebookPage } from './notebook';
import { AuditPage, DoctorPage, MetricsPage, PolicyPage } from './operate';
import { SessionsPage } from './sessions';
import { plain, Shown } from './text';
import { rememberTheme, switchTheme } from './theme';
import { act, Guard, message } from './ui';

const route = signal(location.hash);
const PAGES: { path: string; title: string; scope: string; page: () => JSX.Element; when?: () => boolean }[] = [
  { path: 'sessions', title: 'Sessions', scope: 'read', page: SessionsPage },
  { path: 'approvals', title: 'Approvals', scope: 'read', page: ApprovalsPage },
  { path: 'tools', title: 'Tools', scope: 'read', page: ToolsPage },
  { path: 'workflows', title: 'Workflows', scope: 'read', page: WorkflowsPage },
  { path: 'artifacts', title: 'Artifacts', scope: 'read', page: ArtifactsPage },
  { path: 'packages', title: 'Packages', scope: 'read', page: PackagesPage },
  { path: 'policy', title: 'Policy', scope: 'admin', page: PolicyPage },
  { path: 'audit', title: 'Audit', scope: 'admin', page: AuditPage, when: () => !!me.value?.audit },
  { path: 'metrics', title: 'Metrics', scope: 'metrics', page: MetricsPage },
  { path: 'doctor', title: 'Doctor', scope: 'admin', page: DoctorPage },
];

function Login(): JSX.Element {
  const [token, setToken] = useState(''), [error, setError] = useState(message.value?.text ?? ''); // a link that was used already
  const enter = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      await login({ token });
      message.value = null;
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return (
    <main class="login"><h1>Workcell</h1>
      <form onSubmit={enter}><label>Token <input type="password" autocomplete="off" autofocus value={token} onInput={(event) => setToken(event.currentTarget.value)} /></label>
        <p class="hint">One of the tokens that the server was started with, or the link of <code>workcell console</code>.</p>
        <button class="main">Log in</button></form>
      <p class="problem" role="alert"><Shown text={error} /></p></main>
  );
}

function Body(): JSX.Element {
  const [, path = '', first = '', second = ''] = route.value.split('/');
  useEffect(() => {
    document.title = `${PAGES.find((each) => each.path === (path || 'sessions'))?.title ?? (path === 'compare' ? 'Compare branches' : `Session ${plain(first.slice(0, 12))}`)}${waiting.value.length ? ` (${waiting.value.length})` : ''} – Workcell`;
  });
  if (path === 'session' && first) return <NotebookPage key={first} id={first} />;
  if (path === 'compare' && first && second) return <ComparePage key={route.value} left={first} right={second} />;
  const found = PAGES.find((each) => each.path === (path || 'sessions') && may(each.scope));
  return found ? <found.page key={found.path} /> : <p class="problem">This login has no such page.</p>;
}

function Whole(): JSX.Element {
  useInbox();
  const here = route.value.split('/')[1] || 'sessions', count = waiting.value.length;
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById('content')?.focus(); }}>To the content</a>
      <nav aria-label="pages"><span class="brand">Workcell</span>
        {PAGES.filter((each) => may(each.scope) && (each.when?.() ?? true)).map((each) => <a href={`#/${each.path}`} aria-current={here === each.path || ((here === 'session' || here === 'compare') && each.path === 'sessions') ? 'page' : undefined}>
          {each.title}{each.path === 'approvals' && count > 0 ? ` (${count})` : ''}</a>)}
        <span class="end"><small><Shown text={me.value!.name} /></small><button onClick={switchTheme} aria-label="Light or dark">◐</button><button onClick={() => act(logout)}>Log out</button></span></nav>
      {!online.value && <p class="away" role="alert">The server does not answer. Trying again…</p>}
      <main id="content" tabIndex={-1}><Guard key={route.value}><Body /></Guard></main>
      <div aria-live="assertive">{message.value && <p class={`message ${message.value.bad ? 'bad' : ''}`}><Shown text={message.value.text} /></p>}</div>
    </>
  );
}

function App(): JSX.Element {
  return me.value ? <Whole /> : <Login />;
}

async function start(): Promise<void> {
  rememberTheme();
  const code = /^#code=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, '', location.pathname); // the code is in no history
    route.value = '';
  }
  try {
    if (code) await login({ code });
    else await recognize();
  } catch (error) {
    message.value = { text: (error as Error).message, bad: true };
    if (code) await recognize();
  }
  addEventListener('hashchange', () => { route.value = location.hash; });
  const place = document.getElementById('app')!;
  place.textContent = '';
  render(<App />, place);
}
void start();
