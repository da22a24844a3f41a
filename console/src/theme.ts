// Light or dark: as the person chose, or as the system has it.
import { computed, signal } from '@preact/signals';

const THEME = 'workcell-theme';
const system = matchMedia('(prefers-color-scheme: dark)'), ofSystem = signal(system.matches), chosen = signal('');
system.addEventListener('change', () => { ofSystem.value = system.matches; });

/** What reads this in a component is drawn again when it changes. */
export const dark = computed(() => (chosen.value ? chosen.value === 'dark' : ofSystem.value));

function choose(theme: string): void {
  chosen.value = document.documentElement.dataset.theme = theme;
}

export function rememberTheme(): void {
  const theme = localStorage.getItem(THEME);
  if (theme === 'dark' || theme === 'light') choose(theme);
}

export function switchTheme(): void {
  choose(dark.value ? 'light' : 'dark');
  localStorage.setItem(THEME, chosen.value);
}
