// Charts as data: a table of what a picture shows, for people who cannot see it and for copying.
import type { JSX } from 'preact';
import { Shown } from './text';

const MAX_ROWS = 200;

export function isChart(type: string): boolean {
  return /^application\/(vnd\.)?(workcell|e2b)[.-]?chart(\+json)?/.test(type) || type === 'application/x-chart+json';
}

function cells(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value) ?? '';
}

export function Chart({ text }: { text: string }): JSX.Element | null {
  let chart: any;
  try {
    chart = JSON.parse(text);
  } catch {
    return null;
  }
  if (!chart || typeof chart !== 'object') return null;
  const elements: any[] = Array.isArray(chart.elements) ? chart.elements : [];
  const rows: [string, string, string][] = [];
  for (const element of elements) {
    const label = cells(element?.label ?? '');
    if (Array.isArray(element?.points)) for (const point of element.points) rows.push([label, cells(point?.[0]), cells(point?.[1])]);
    else rows.push([cells(element?.group ?? ''), label, cells(element?.value ?? element?.angle ?? element)]);
  }
  return (
    <details class="chart">
      <summary>Data of the chart: <Shown text={`${cells(chart.type ?? 'chart')} ${cells(chart.title ?? '')}`} /></summary>
      <table>
        <thead><tr><th>series</th><th><Shown text={cells(chart.x_label ?? 'x')} /></th><th><Shown text={cells(chart.y_label ?? 'y')} /></th></tr></thead>
        <tbody>{rows.slice(0, MAX_ROWS).map((row) => <tr>{row.map((each) => <td><Shown text={each} /></td>)}</tr>)}</tbody>
      </table>
      {rows.length > MAX_ROWS && <p>{rows.length - MAX_ROWS} more</p>}
    </details>
  );
}
