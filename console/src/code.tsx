// Python code with its colours, as texts.
import { pythonLanguage } from '@codemirror/lang-python';
import { highlightTree, tagHighlighter, tags } from '@lezer/highlight';
import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { Shown } from './text';

const LONGEST = 20_000; // characters that are coloured
const MOST = 5000; // coloured pieces

const highlighter = tagHighlighter([
  { tag: [tags.keyword, tags.bool, tags.null], class: 'k' }, { tag: [tags.string, tags.special(tags.string), tags.escape], class: 's' }, { tag: tags.number, class: 'n' },
  { tag: tags.comment, class: 'c' }, { tag: [tags.function(tags.variableName), tags.definition(tags.variableName), tags.function(tags.propertyName)], class: 'f' },
]);

function coloured(text: string): (string | JSX.Element)[] {
  const parts: (string | JSX.Element)[] = [];
  let at = 0;
  const shown = (piece: string): string | JSX.Element => (/^[\t\n -~]*$/.test(piece) ? piece : <Shown text={piece} />);
  highlightTree(pythonLanguage.parser.parse(text), highlighter, (from, to, kind) => {
    if (parts.length > MOST) return;
    if (from > at) parts.push(shown(text.slice(at, from)));
    parts.push(<span class={`code-${kind}`}>{shown(text.slice(from, to))}</span>);
    at = to;
  });
  parts.push(shown(text.slice(at)));
  return parts;
}

export function Python({ text }: { text: string }): JSX.Element {
  const parts = useMemo(() => (text.length > LONGEST ? [<Shown text={text} />] : coloured(text)), [text]);
  return <>{parts}</>;
}
