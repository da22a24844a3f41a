// build.mjs WORK DIST: bundles the console with the libraries in WORK/node_modules.
import { createRequire } from 'node:module';
import { createHash } from 'node:crypto';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const work = resolve(process.argv[2] ?? here);
const dist = resolve(process.argv[3] ?? join(here, 'dist'));
const { build } = createRequire(join(work, 'package.json'))('esbuild');

mkdirSync(dist, { recursive: true });
const common = {
  bundle: true, minify: true, target: 'es2022', nodePaths: [join(work, 'node_modules')], legalComments: 'none', logLevel: 'warning',
  jsx: 'automatic', jsxImportSource: 'preact', absWorkingDir: here,
};
await build({ ...common, entryPoints: ['src/main.tsx'], outfile: join(dist, 'main.js'), format: 'esm' });
await build({ ...common, entryPoints: ['src/frame.ts'], outfile: join(dist, 'frame.js'), format: 'iife' });
const plots = readFileSync(join(work, 'node_modules', 'uplot', 'dist', 'uPlot.min.css'), 'utf8');
writeFileSync(join(dist, 'style.css'), plots + readFileSync(join(here, 'src', 'style.css'), 'utf8'));
for (const name of ['index.html', 'frame.html', 'icon.svg']) copyFileSync(join(here, 'src', name), join(dist, name));
// What these files were made of: scripts/embed-console.py has the same.
const total = createHash('sha256');
for (const name of ['package-lock.json', 'build.mjs', ...readdirSync(join(here, 'src')).sort().map((each) => `src/${each}`)]) {
  total.update(`${name}\0`).update(createHash('sha256').update(readFileSync(join(here, name))).digest());
}
writeFileSync(join(dist, '.sources'), total.digest('hex'));
