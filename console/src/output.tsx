// Values and displays of cells by their types. Markup is shown in a frame with an origin of its own.
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Chart, isChart } from './chart';
import { dark } from './theme';
import { Markdown, plain, Shown } from './text';

export interface Part { type: string; text?: string; base64?: string; }

const MAX_FRAME = 2000; // pixels
const MAX_SHOWN = 50000; // characters of one text at first
const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];

/** The frame may fetch nothing and cannot reach this page; it only says how high it is. */
function Frame({ markup }: { markup: string }): JSX.Element {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(60), [scripts, setScripts] = useState(false);
  useEffect(() => {
    const hear = (event: MessageEvent): void => {
      if (!frame.current || event.source !== frame.current.contentWindow || typeof event.data !== 'object' || !event.data) return;
      if (event.data.ready === true) frame.current.contentWindow!.postMessage({ markup, dark: dark.value, scripts }, '*');
      if (typeof event.data.height === 'number') setHeight(Math.min(Math.max(event.data.height, 20), MAX_FRAME));
    };
    addEventListener('message', hear);
    return () => removeEventListener('message', hear);
  }, [markup, scripts, dark.value]);
  return (
    <div class="frame">
      <iframe key={`${scripts} ${dark.value}`} ref={frame} title="output of the cell" sandbox="allow-scripts" src={scripts ? 'frame?scripts=true' : 'frame'}
        style={{ height: `${height}px` }} />
      {!scripts && /<script/i.test(markup) &&
        <button class="quiet" onClick={() => setScripts(true)} title="in its frame, without network and without this page">Run its scripts</button>}
    </div>
  );
}

function textOf(part: Part): string {
  if (part.text !== undefined) return part.text;
  const bytes = Uint8Array.from(atob(part.base64 ?? ''), (each) => each.charCodeAt(0));
  return new TextDecoder().decode(bytes);
}

function base64Of(part: Part): string {
  if (part.base64 !== undefined) return part.base64;
  const bytes = new TextEncoder().encode(part.text ?? '');
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

export function LongText({ text, of }: { text: string; of?: (text: string) => JSX.Element }): JSX.Element {
  const [whole, setWhole] = useState(false);
  const show = of ?? ((each: string) => <Shown text={each} />);
  if (whole || text.length <= MAX_SHOWN) return show(text);
  return <>{show(text.slice(0, MAX_SHOWN))}<button class="quiet" onClick={() => setWhole(true)}>Show all {text.length} characters</button></>;
}

/** The richest form that can be shown: charts as data beside their pictures. */
export function Parts({ parts, alt }: { parts: Part[]; alt: string }): JSX.Element | null {
  const find = (type: string): Part | undefined => parts.find((part) => part.type === type);
  const chart = parts.find((part) => isChart(part.type));
  const picture = parts.find((part) => PICTURES.includes(part.type)), drawing = find('image/svg+xml');
  const markup = find('text/html'), words = find('text/markdown'), json = find('application/json'), text = find('text/plain');
  const shown: JSX.Element[] = [];
  // Drawings are shown as images: scripts in them do not run, and nothing is loaded.
  if (picture) shown.push(<img class="plot" src={`data:${picture.type};base64,${base64Of(picture)}`} alt={plain(alt)} />);
  else if (drawing) shown.push(<img class="plot" src={`data:image/svg+xml;base64,${base64Of(drawing)}`} alt={plain(alt)} />);
  else if (markup) shown.push(<Frame markup={textOf(markup)} />);
  else if (words) shown.push(<LongText text={textOf(words)} of={(each) => <Markdown text={each} />} />);
  else if (json) shown.push(<pre class="value"><LongText text={pretty(textOf(json))} /></pre>);
  else if (text) shown.push(<pre class="value"><LongText text={textOf(text)} /></pre>);
  if (chart) shown.push(<Chart text={textOf(chart)} />);
  return shown.length ? <>{shown}</> : null;
}

export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
