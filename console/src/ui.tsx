// What pages share: data that is fetched again and again, messages, sessions.
import { signal } from '@preact/signals';
import { Component, type ComponentChildren, type JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask, Failure } from './api';
import { duration, Shown } from './text';

export interface Session {
  session_id: string; workspace_id: string | null; owner: string; client: string; created_at: string; idle_seconds: number; state: string; runs: number;
  pending: number; executor: string; running: { run_id: number; code: string; seconds: number } | null; pid: number | null; memory_bytes: number | null;
  cpu_seconds: number | null; parent: string | null; points: number; point_bytes: number; isolation: string | null;
}

export const message = signal<{ text: string; bad: boolean } | null>(null);
let timer = 0;

export function say(text: string, bad = false): void {
  message.value = { text, bad };
  clearTimeout(timer);
  timer = setTimeout(() => { message.value = null; }, bad ? 12000 : 4000) as unknown as number;
}

/** Does it, and shows why it failed. */
export async function act(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work();
    if (done) say(done);
    return true;
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), true);
    return false;
  }
}

const BUSY_PAUSE = 1000; // ms until a session is asked again in which a cell ran

/** Fetches a path now, when the version changes, and every so often while the page is visible. path NULL: not now. */
export function usePolled<T>(path: string | null, every = 2000, version = ''): [T | null, Error | null, () => void] {
  const [value, setValue] = useState<T | null>(null), [error, setError] = useState<Error | null>(null), [turn, setTurn] = useState(0);
  const before = useRef('');
  useEffect(() => {
    if (!path) return undefined;
    let alive = true, next = 0;
    const look = async (): Promise<void> => {
      if (!document.hidden || !before.current) {
        try {
          const found = await ask<T>('GET', path), text = JSON.stringify(found);
          if (alive && text !== before.current) setValue(found);
          if (alive) { before.current = text; setError(null); }
        } catch (failure) {
          if (alive) setError(failure as Error);
          if (failure instanceof Failure && failure.status >= 400 && failure.status < 500 && failure.status !== 429 && failure.code !== 'busy') return;
          if (alive && failure instanceof Failure && failure.code === 'busy') {
            next = setTimeout(look, every || BUSY_PAUSE) as unknown as number;
            return;
          }
        }
      }
      if (alive && every) next = setTimeout(look, every) as unknown as number;
    };
    void look();
    return () => { alive = false; clearTimeout(next); };
  }, [path, every, turn, version]);
  return [value, error, () => setTurn((each) => each + 1)];
}

export interface Variable { name: string; type: string; preview: string; size?: number; }

const MOST_VARIABLES = 1000;

/** The kernel answers, and code may have changed what it says: whatever is no list of variables is left out. */
export function variablesOf(answer: any): Variable[] {
  if (!Array.isArray(answer?.variables)) return [];
  return answer.variables.filter((each: any) => ['name', 'type', 'preview'].every((field) => typeof each?.[field] === 'string')).slice(0, MOST_VARIABLES)
    .map((each: Variable) => ({ ...each, name: each.name.slice(0, 300), type: each.type.slice(0, 200), preview: each.preview.slice(0, 1000) }));
}

/** A page that fails says so, and the others are still there. */
export class Guard extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  state = { error: null as Error | null };

  componentDidCatch(error: Error): void {
    this.setState({ error });
  }

  render(): ComponentChildren {
    return this.state.error ? <p class="problem" role="alert">This page cannot be shown: <Shown text={this.state.error.message} /></p> : this.props.children;
  }
}

export function Problem({ error }: { error: Error | null }): JSX.Element | null {
  return error ? <p class="problem" role="alert"><Shown text={error.message} /></p> : null;
}

export function ago(seconds: number): string {
  return seconds < 1 ? 'now' : duration(Math.floor(seconds));
}

export function Page({ title, children, tools }: { title: string; children: ComponentChildren; tools?: ComponentChildren }): JSX.Element {
  return <><header class="bar"><h1>{title}</h1>{tools}</header>{children}</>;
}

export function Waiting(): JSX.Element {
  return <p class="wait" aria-busy="true">Loading…</p>;
}
