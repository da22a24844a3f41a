// Texts of agents and tools. They become text nodes, never markup, and characters that change how others are read are made visible.
import type { JSX } from 'preact';

// Controls of bidirectional text, invisible characters, and control characters other than tab and line feed.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\udb40][\udc00-\udfff]/g;

function nameOf(odd: string): string {
  return 'U+' + odd.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0');
}

/** For places that take a string: titles, labels. */
export function plain(text: string): string {
  return text.replace(/\r\n/g, '\n').replace(ODD, (odd) => `‹${nameOf(odd)}›`);
}

/** JSON with those characters as escapes: it means the same, and reads as it is. */
export function escaped(json: string): string {
  return json.replace(ODD, (odd) => [...Array(odd.length).keys()].map((i) => '\\u' + odd.charCodeAt(i).toString(16).padStart(4, '0')).join(''));
}

/** For the name of a file that is saved: none of those characters, no folders. */
export function fileName(name: string): string {
  return (name.split('/').pop() ?? '').replace(ODD, '_') || 'artifact';
}

export function Shown({ text }: { text: string }): JSX.Element {
  const clean = text.replace(/\r\n/g, '\n'), parts: (string | JSX.Element)[] = [];
  let at = 0;
  for (const found of clean.matchAll(ODD)) {
    parts.push(clean.slice(at, found.index), <span class="odd" title="a character that is not visible">{nameOf(found[0])}</span>);
    at = found.index + found[0].length;
  }
  parts.push(clean.slice(at));
  return <bdi>{parts}</bdi>;
}

const SGR = /\u001b\[([0-9;]*)m/g;
const OTHER_ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[PX^_][^\u001b]*\u001b\\|[@-Z\\-_])/g;

function paint(style: { color: number | null; bold: boolean }, codes: string): void {
  for (const code of (codes || '0').split(';').map(Number)) {
    if (code === 0) Object.assign(style, { color: null, bold: false });
    else if (code === 1) style.bold = true;
    else if (code === 22) style.bold = false;
    else if (code >= 30 && code <= 37) style.color = code - 30;
    else if (code >= 90 && code <= 97) style.color = code - 90;
    else if (code === 39) style.color = null;
    else if (code === 38 || code === 48) return; // a palette: the rest of the list belongs to it
  }
}

/** What a line shows after its carriage returns: progress bars write over themselves. */
function overwrite(text: string): string {
  return text.includes('\r') ? text.split('\n').map((line) => line.replace(/\r+$/, '').split('\r').pop()!).join('\n') : text;
}

/** Output of a program for a terminal: colours are kept, other sequences are dropped. */
export function Terminal({ text }: { text: string }): JSX.Element {
  const clean = overwrite(text.replace(/\r\n/g, '\n').replace(OTHER_ESCAPES, (all) => (/^\u001b\[[0-9;]*m$/.test(all) ? all : '')));
  const parts: JSX.Element[] = [], style = { color: null as number | null, bold: false };
  let at = 0;
  const add = (piece: string): void => {
    if (!piece) return;
    const kind = [style.color === null ? '' : `ansi${style.color}`, style.bold ? 'bold' : ''].filter(Boolean).join(' ');
    parts.push(kind ? <span class={kind}><Shown text={piece} /></span> : <Shown text={piece} />);
  };
  for (const found of clean.matchAll(SGR)) {
    add(clean.slice(at, found.index));
    paint(style, found[1]);
    at = found.index + found[0].length;
  }
  add(clean.slice(at));
  return <>{parts}</>;
}

function inline(text: string): (string | JSX.Element)[] {
  const parts: (string | JSX.Element)[] = [];
  let at = 0;
  for (const found of text.matchAll(/`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|!?\[([^\]]*)\]\(([^)\s]+)[^)]*\)/g)) {
    parts.push(plain(text.slice(at, found.index)));
    if (found[1] !== undefined) parts.push(<code><Shown text={found[1]} /></code>);
    else if (found[2] !== undefined) parts.push(<b><Shown text={found[2]} /></b>);
    else if (found[3] !== undefined) parts.push(<i><Shown text={found[3]} /></i>);
    else parts.push(<span class="link"><Shown text={found[4]} /> <small>(<Shown text={found[5]} />)</small></span>); // an address is shown, not followed
    at = found.index + found[0].length;
  }
  parts.push(plain(text.slice(at)));
  return parts;
}

/** The common part of Markdown; markup in it is text. */
export function Markdown({ text }: { text: string }): JSX.Element {
  const blocks: JSX.Element[] = [];
  const lines = text.split('\n');
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i], heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (line.startsWith('```')) {
      const code: string[] = [];
      while (++i < lines.length && !lines[i].startsWith('```')) code.push(lines[i]);
      blocks.push(<pre><Shown text={code.join('\n')} /></pre>);
    } else if (heading) {
      blocks.push(<p class={`heading h${heading[1].length}`}>{inline(heading[2])}</p>);
    } else if (/^\s*([-*+]|\d+[.)])\s/.test(line)) {
      const items: string[] = [];
      for (; i < lines.length && /^\s*([-*+]|\d+[.)])\s/.test(lines[i]); i++) items.push(lines[i].replace(/^\s*([-*+]|\d+[.)])\s/, ''));
      i--;
      blocks.push(<ul>{items.map((item) => <li>{inline(item)}</li>)}</ul>);
    } else if (line.trim()) {
      const words = [line];
      while (i + 1 < lines.length && lines[i + 1].trim() && !/^(#|```|\s*[-*+]\s)/.test(lines[i + 1])) words.push(lines[++i]);
      blocks.push(<p>{inline(words.join(' '))}</p>);
    }
  }
  return <div class="markdown">{blocks}</div>;
}

/** A unified diff with its colours. */
export function Diff({ text }: { text: string }): JSX.Element {
  const kind = (line: string): string => (line.startsWith('+') ? 'plus' : line.startsWith('-') ? 'minus' : line.startsWith('@@') ? 'hunk' : '');
  return <pre class="diff">{text.split('\n').map((line) => <div class={kind(line)}><Shown text={line || ' '} /></div>)}</pre>;
}

/** What changed from one text to another, line by line; the longest common subsequence of up to 2000 lines. */
export function compare(before: string, after: string): string {
  const a = before.split('\n').slice(0, 2000), b = after.split('\n').slice(0, 2000);
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  }
  const out: string[] = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push(' ' + a[i++]); j++; }
    else if (j < b.length && (i === a.length || table[i][j + 1] >= table[i + 1][j])) out.push('+' + b[j++]);
    else out.push('-' + a[i++]);
  }
  return out.join('\n');
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return '–';
  let unit = 0, value = bytes;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${['B', 'kB', 'MB', 'GB', 'TB'][unit]}`;
}

export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}
