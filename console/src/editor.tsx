// The editor of a cell. It lives in a shadow tree: its styles are sheets of that tree, which the page's policy allows.
import { autocompletion, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { python } from '@codemirror/lang-python';
import { bracketMatching, HighlightStyle, indentUnit, syntaxHighlighting } from '@codemirror/language';
import { EditorState } from '@codemirror/state';
import { EditorView, highlightSpecialChars, keymap, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { ask } from './api';
import { plain } from './text';

// Colours by the page's properties, which a shadow tree inherits: those of light or dark.
const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.bool, tags.null], color: 'var(--code-k)' }, { tag: [tags.string, tags.special(tags.string)], color: 'var(--code-s)' }, { tag: tags.number, color: 'var(--code-n)' },
  { tag: tags.comment, color: 'var(--code-c)' }, { tag: [tags.function(tags.variableName), tags.definition(tags.variableName), tags.function(tags.propertyName)], color: 'var(--code-f)' },
]);

/** The kernel answers: what does not continue the text before the cursor, or is not what it looks like, is no completion. */
function completionsOf(found: any, context: CompletionContext): CompletionResult | null {
  const before = context.state.sliceDoc(0, context.pos), prefix = found?.prefix;
  if (typeof prefix !== 'string' || !before.endsWith(prefix) || !Array.isArray(found.matches)) return null;
  const fits = (each: unknown): boolean => typeof each === 'string' && each.startsWith(prefix) && each.length < 200 && !/\s/.test(each) && each === plain(each);
  return { from: context.pos - prefix.length, options: found.matches.filter(fits).slice(0, 200).map((label: string) => ({ label })), validFor: /^\w*$/ };
}

function completer(session: string) {
  return async (context: CompletionContext): Promise<CompletionResult | null> => {
    const word = context.matchBefore(/[\w.]*/);
    if (!context.explicit && (!word || word.from === word.to)) return null;
    try {
      const found = await ask('POST', `/v1/sessions/${session}/complete`, { code: context.state.sliceDoc(0, context.pos) });
      return completionsOf(found, context);
    } catch {
      return null; // a cell runs: there are no completions now
    }
  };
}

export function Editor({ session, run, disabled }: { session: string; run: (code: string) => void; disabled: boolean }): JSX.Element {
  const place = useRef<HTMLDivElement>(null), latest = useRef(run), view = useRef<EditorView | null>(null);
  latest.current = disabled ? () => undefined : run;
  const send = (editor: EditorView): boolean => {
    const code = editor.state.doc.toString();
    if (!code.trim()) return true;
    latest.current(code);
    editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: '' } });
    return true;
  };
  useEffect(() => {
    const root = place.current!.shadowRoot ?? place.current!.attachShadow({ mode: 'open' });
    view.current = new EditorView({
      root, parent: root,
      state: EditorState.create({
        extensions: [
          keymap.of([{ key: 'Shift-Enter', run: send }, { key: 'Mod-Enter', run: send }]), history(), placeholder('Code of a new cell'), highlightSpecialChars(), bracketMatching(), python(),
          indentUnit.of('    '), autocompletion({ override: [completer(session)] }),
          syntaxHighlighting(colours), keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
          EditorView.lineWrapping, EditorView.contentAttributes.of({ 'aria-label': 'Code of a new cell' }),
          EditorView.theme({
            '&': { fontSize: '13px', color: 'inherit' }, '.cm-content': { fontFamily: 'ui-monospace, monospace', minHeight: '3.2em', caretColor: 'currentColor' },
            '.cm-placeholder': { color: 'var(--soft)' }, '.cm-cursor, &.cm-focused .cm-cursor': { borderLeftColor: 'currentColor' },
            '&.cm-focused': { outline: '2px solid var(--main)' }, '.cm-selectionBackground, &.cm-focused .cm-selectionBackground': { background: 'var(--line)' },
            '&.cm-focused .cm-matchingBracket, &.cm-focused .cm-nonmatchingBracket': { background: 'none', outline: '1px solid var(--soft)' },
            '.cm-tooltip, .cm-tooltip.cm-tooltip-autocomplete': { background: 'var(--paper)', color: 'var(--ink)', border: '1px solid var(--line)' },
            '.cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]': { background: 'var(--main)', color: 'var(--on-main)' },
          }),
        ],
      }),
    });
    return () => view.current?.destroy();
  }, [session]);
  return (
    <div class="editor">
      <div ref={place} class="code" />
      <p class="buttons"><button class="main" disabled={disabled} onClick={() => view.current && send(view.current)}>Run</button>
        <span class="hint keys">Shift+Enter runs it. Escape, then Tab, leaves the editor.</span></p>
    </div>
  );
}
