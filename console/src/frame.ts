// Runs in the frame that shows markup of a cell. The frame has an origin of its own and may fetch nothing. Its owner sends the markup once.
interface Order { markup: string; dark: boolean; scripts: boolean; }

function tellHeight(): void {
  parent.postMessage({ height: document.documentElement.scrollHeight }, '*');
}

const style = `body{margin:0;font:14px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
table{border-collapse:collapse;border:0}th,td{padding:.2em .6em;text-align:right;border:0;border-bottom:1px solid #8884}thead th{border-bottom:2px solid #8888}
img,svg{max-width:100%}`;

addEventListener('message', (event: MessageEvent<Order>) => {
  if (event.source !== parent) return;
  const { markup, dark, scripts } = event.data;
  document.documentElement.style.colorScheme = dark ? 'dark' : 'light';
  if (scripts) {
    document.open();
    document.write(`<!DOCTYPE html><meta name="color-scheme" content="${dark ? 'dark' : 'light'}"><style>${style}</style>${markup}`);
    document.close();
  } else {
    // Scripts that are set this way do not run, and the policy allows no handlers.
    const sheet = document.createElement('style');
    sheet.textContent = style;
    document.head.append(sheet);
    // Nor does anything of it make the browser look up or connect to another host before something is loaded, which no policy forbids.
    const parsed = new DOMParser().parseFromString(markup, 'text/html');
    parsed.querySelectorAll('link, meta, base').forEach((each) => each.remove());
    document.body.replaceChildren(...parsed.querySelectorAll('head > style'), ...parsed.body.childNodes);
  }
  new ResizeObserver(tellHeight).observe(document.documentElement);
  tellHeight();
}, { once: true });
parent.postMessage({ ready: true }, '*');
