// The editor of a cell. It lives in a shadow tree: its styles are sheets of that tree, which the page's policy allows.
import { autocompletion, completionKeymap, type CompletionContext, type CompletionResult } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { python } from '@codemirror/lang-python';
import { bracketMatching, defaultHighlightStyle, HighlightStyle, indentUnit, syntaxHighlighting } from '@codemirror/language';
import { EditorState } from '@codemirror/state';
import { EditorView, highlightSpecialChars, keymap, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import type { JSX } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { ask } from './api';
import { isDark } from './output';
import { plain } from './text';

const dark = HighlightStyle.define([
  { tag: tags.keyword, color: '#c792ea' }, { tag: [tags.string, tags.special(tags.string)], color: '#c3e88d' }, { tag: tags.number, color: '#f78c6c' },
  { tag: tags.comment, color: '#8a94a6' }, { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], color: '#82aaff' },
  { tag: tags.bool, color: '#f78c6c' }, { tag: tags.operator, color: '#89ddff' },
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
  useEffect(() => {
    const root = place.current!.shadowRoot ?? place.current!.attachShadow({ mode: 'open' });
    const send = (editor: EditorView): boolean => {
      const code = editor.state.doc.toString();
      if (!code.trim()) return true;
      latest.current(code);
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: '' } });
      return true;
    };
    view.current = new EditorView({
      root, parent: root,
      state: EditorState.create({
        extensions: [
          keymap.of([{ key: 'Shift-Enter', run: send }, { key: 'Mod-Enter', run: send }]), history(), placeholder('Code of a new cell'), highlightSpecialChars(), bracketMatching(), python(),
          indentUnit.of('    '), autocompletion({ override: [completer(session)] }),
          syntaxHighlighting(isDark() ? dark : defaultHighlightStyle), keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
          EditorView.lineWrapping, EditorView.contentAttributes.of({ 'aria-label': 'Code of a new cell' }),
          EditorView.theme({
            '&': { fontSize: '13px', color: 'inherit' }, '.cm-content': { fontFamily: 'ui-monospace, monospace', minHeight: '3.2em', caretColor: 'currentColor' },
            '.cm-placeholder': { color: isDark() ? '#a3adb8' : '#59636e' },
            '&.cm-focused': { outline: '2px solid #4a80d8' },
          }, { dark: isDark() }),
        ],
      }),
    });
    return () => view.current?.destroy();
  }, [session]);
  return (
    <div class="editor">
      <div ref={place} class="code" />
      <p class="hint">Shift+Enter runs it. Escape, then Tab, leaves the editor.</p>
    </div>
  );
}
