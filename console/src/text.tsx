// Texts of agents and tools. They become text nodes, never markup, and characters that change how others are read are made visible.
import type { JSX } from 'preact';

// Controls of bidirectional text, invisible characters, control characters other than tab and line feed, and marks on a letter that has six:
// a pile of them would cover the lines above and below.
const ODD = /[\p{Default_Ignorable_Code_Point}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202f\u2800\ufff9-\ufffb\u{13430}-\u{1345f}]|\p{M}(?<=\p{M}{7})/gu;

const MOST_ELEMENTS = 1000; // of one text: more would hold up the page
const LONGEST_RUN = 16; // of such characters, whose numbers are shown
const RUN = new RegExp(`(?:${ODD.source})+`, 'gu');

function nameOf(odd: string): string {
  return 'U+' + odd.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0');
}

/** For places that take a string: titles, labels. */
export function plain(text: string): string {
  return text.replace(/\r\n/g, '\n').replace(RUN, (run) => {
    const odd = [...run];
    return odd.slice(0, LONGEST_RUN).map((each) => `‹${nameOf(each)}›`).join('') + (odd.length > LONGEST_RUN ? `‹and ${odd.length - LONGEST_RUN} more›` : '');
  });
}

/** JSON with those characters as escapes: it means the same, and reads as it is. */
export function escaped(json: string): string {
  return json.replace(ODD, (odd) => [...Array(odd.length).keys()].map((i) => '\\u' + odd.charCodeAt(i).toString(16).padStart(4, '0')).join(''));
}

/** For the name of a file that is saved: none of those characters, no folders. */
export function fileName(name: string): string {
  return (name.split('/').pop() ?? '').replace(ODD, '_') || 'artifact';
}


/** What the kernel answers with is the agent's too: it need not be a text. */
export function Shown({ text }: { text: string }): JSX.Element {
  const clean = (typeof text === 'string' ? text : String(JSON.stringify(text))).replace(/\r\n/g, '\n'), parts: (string | JSX.Element)[] = [];
  let at = 0;
  for (const found of clean.matchAll(RUN)) {
    // A line of so many without a place to break it takes the browser minutes.
    if (parts.length > MOST_ELEMENTS) return <bdi>{parts}{plain(clean.slice(at)).replaceAll('›', '› ')}</bdi>
    const odd = [...found[0]], names = odd.slice(0, LONGEST_RUN).map(nameOf).join(' ');
    parts.push(clean.slice(at, found.index), <span class="odd" title="not visible">{names}{odd.length > LONGEST_RUN && ` and ${odd.length - LONGEST_RUN} more`}</span>);
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
    if (parts.length > MOST_ELEMENTS) return <>{parts}<Shown text={clean.slice(at).replace(SGR, '')} /></>;
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
  for (const found of text.matchAll(/`([^`]{1,1000})`|\*\*([^*]{1,1000})\*\*|\*([^*\s][^*]{0,1000})\*|!?\[([^\]]{0,300})\]\(([^)\s]{1,1000})(?:\s[^)]{0,300})?\)/g)) {
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

/** The common part of Markdown; markup in it is text. Its repetitions are bounded: long texts without an end cost no more than their length. */
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

/** The hunks of a unified diff with their colours. */
export function Diff({ text }: { text: string }): JSX.Element {
  const kind = (line: string): string => (line.startsWith('+') ? 'plus' : line.startsWith('-') ? 'minus' : line.startsWith('@@') ? 'hunk' : '');
  return <pre class="diff">{text.replace(/\n $/, '').split('\n').map((line) => <div class={kind(line)}><Shown text={line || ' '} /></div>)}</pre>;
}

const MOST_EDITS = 1000; // lines that are added and removed; with more, nothing is aligned
const AROUND = 3; // unchanged lines that are shown beside changed ones

/** The lines of a and b with the fewest edits (Myers' algorithm); where these are too many, all of a and then all of b. */
function align(a: string[], b: string[]): string[] {
  const most = Math.min(a.length + b.length, MOST_EDITS), zero = most + 1, reached = new Int32Array(2 * most + 3), trace: Int32Array[] = [];
  const comesFromAbove = (v: Int32Array, k: number, d: number): boolean => k === -d || (k !== d && v[zero + k - 1] < v[zero + k + 1]);
  for (let d = 0; d <= most; d++) {
    trace.push(reached.slice());
    for (let k = -d; k <= d; k += 2) {
      let x = comesFromAbove(reached, k, d) ? reached[zero + k + 1] : reached[zero + k - 1] + 1, y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) { x++; y++; }
      reached[zero + k] = x;
      if (x >= a.length && y >= b.length) return walkBack(d);
    }
  }
  return [...a.map((line) => '-' + line), ...b.map((line) => '+' + line)];

  function walkBack(edits: number): string[] {
    const out: string[] = [];
    let x = a.length, y = b.length;
    for (let d = edits; d >= 0; d--) {
      const v = trace[d], k = x - y, above = comesFromAbove(v, k, d), from = d ? v[zero + (above ? k + 1 : k - 1)] : 0, start = d ? from - (above ? k + 1 : k - 1) : 0;
      while (x > from + (d && !above ? 1 : 0) && y > start + (d && above ? 1 : 0)) { out.push(' ' + a[--x]); y--; }
      if (d) out.push(above ? '+' + b[--y] : '-' + a[--x]);
    }
    return out.reverse();
  }
}

/** What changed from one text to another, line by line. No changed line is left out. */
export function compare(before: string, after: string): string {
  const a = before.split('\n'), b = after.split('\n');
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const same = (line: string): string => ' ' + line, end = a.length - tail;
  const lines = [...a.slice(0, head).map(same), ...align(a.slice(head, end), b.slice(head, b.length - tail)), ...a.slice(end).map(same)];
  const out: string[] = [];
  for (let i = 0; i < lines.length;) {
    let n = i;
    while (n < lines.length && lines[n].startsWith(' ')) n++;
    const left = i ? AROUND : 0, right = n < lines.length ? AROUND : 0;
    if (n - i > left + right + 1) out.push(...lines.slice(i, i + left), `@@ ${n - i - left - right} unchanged lines @@`, ...lines.slice(n - right, n));
    else out.push(...lines.slice(i, n));
    for (i = n; i < lines.length && !lines[i].startsWith(' '); i++) out.push(lines[i]);
  }
  return out.join('\n');
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return '–';
  let unit = 0, value = bytes;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${['B', 'kB', 'MB', 'GB', 'TB'][unit]}`;
}

/** A time of ISO 8601, as this place has it. */
export function when(time = ''): string {
  const at = new Date(time);
  return Number.isNaN(at.getTime()) ? time : at.toLocaleString();
}

export function duration(seconds: number): string {
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}
