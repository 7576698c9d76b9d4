"""How report.html looks: one style sheet for phone and desktop, light and dark, screen and paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --wash: #f5f7f9; --ink: #1b232d; --soft: #5a6675; --line: #dfe4ea;
  --accent: #1c5fa5; --shade: 28 95 165; --on-shade: #ffffff; --good: #1d7a4c; --bad: #b3402b;
  --series-0: #1c5fa5; --series-1: #c2571a; --series-2: #1d7a4c; --series-3: #8a3f8f; --series-4: #8a6d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #11161c; --wash: #1a212a; --ink: #e6ebf1; --soft: #9aa7b6; --line: #2d3743;
    --accent: #7db4ee; --shade: 84 146 214; --on-shade: #0b1016; --good: #6cc797; --bad: #f08e78;
    --series-0: #7db4ee; --series-1: #f0a05f; --series-2: #6cc797; --series-3: #cf95d4; --series-4: #d9bd55;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif;
  overflow-wrap: anywhere;
}
h1 { margin: .25rem 0 .5rem; font-size: clamp(1.5rem, 1.1rem + 2vw, 2.25rem); line-height: 1.2; font-weight: 650;
  letter-spacing: -.015em; text-wrap: balance; }
h2 { margin: 3rem 0 .75rem; padding-top: 1.25rem; border-top: 1px solid var(--line); font-size: 1.25rem;
  line-height: 1.3; font-weight: 620; }
p { margin: .5rem 0; max-width: 44rem; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; line-height: 1.5; }
nav { margin: 0 0 1.75rem; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; font-size: .9375rem; }
nav a { color: var(--accent); text-decoration: none; padding: .2rem 0; }
nav a:hover { text-decoration: underline; }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--accent);
  outline-offset: 2px; }
.notes { margin: 1.25rem 0; padding: .75rem 1rem .75rem 2rem; background: var(--wash); border-radius: .5rem; }
.notes li { margin: .2rem 0; }

.scores { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
.score { padding: 1rem 1.1rem .9rem; border: 1px solid var(--line); border-radius: .75rem; }
.score h3 { margin: 0; font-size: .9375rem; font-weight: 550; color: var(--soft); }
.score .value { margin: .1rem 0 .35rem; font-size: 2.75rem; line-height: 1.15; font-weight: 640;
  letter-spacing: -.03em; font-variant-numeric: tabular-nums; }
.score .value.long { font-size: 2rem; line-height: 1.58; }
.score .unit { font-size: 1.5rem; font-weight: 500; letter-spacing: 0; color: var(--soft); }
.score svg { margin: .15rem 0 .3rem; }
.score p { margin: 0; font-variant-numeric: tabular-nums; }

.panels { display: grid; gap: 1.5rem 2rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 34rem; }
figure h3 { margin: 0 0 .4rem; font-size: .9375rem; font-weight: 600; }
figcaption { margin-top: .4rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.track { stroke: var(--line); stroke-width: 6; stroke-linecap: round; }
.band { fill: var(--accent); opacity: .5; }
.mark { stroke: var(--ink); stroke-width: 2; }
.bar { fill: var(--series-0); } .bar.over { fill: var(--series-1); }
.limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg text.limit-name { fill: var(--bad); }
.legend { margin: .4rem 0 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1rem;
  font-size: .8125rem; }
.legend svg { display: inline-block; width: 26px; height: 8px; vertical-align: middle; margin-right: .4rem; }
.line-0 { stroke: var(--series-0); } .line-1 { stroke: var(--series-1); stroke-dasharray: 7 4; }
.line-2 { stroke: var(--series-2); stroke-dasharray: 2 4; }
.line-3 { stroke: var(--series-3); stroke-dasharray: 9 3 2 3; }
.line-4 { stroke: var(--series-4); stroke-dasharray: 14 4; }
.mark-0 { fill: var(--series-0); } .mark-1 { fill: var(--series-1); } .mark-2 { fill: var(--series-2); }
.mark-3 { fill: var(--series-3); } .mark-4 { fill: var(--series-4); }

.box { overflow: auto; max-width: 100%; max-height: 85vh; border: 1px solid var(--line); border-radius: .5rem; }
.box.short { width: fit-content; }
table { overflow-wrap: break-word; border-collapse: separate; border-spacing: 0; font-size: .875rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; padding: .6rem .75rem; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; border-bottom: 1px solid var(--line); background: var(--wash); font-weight: 600;
  vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; }
.settings { width: 100%; table-layout: fixed; overflow-wrap: anywhere; }
.settings th { font-weight: 500; width: 14rem; }
.settings td { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .8125rem; }
h3.table-name { margin: 1.5rem 0 .5rem; font-size: 1rem; font-weight: 600; }

.confusion th, .confusion td { border: 0; white-space: nowrap; padding: .35rem .55rem; }
.confusion td { text-align: right; min-width: 2.6rem; background: rgb(var(--shade) / var(--share, 0));
  box-shadow: inset 0 0 0 .5px var(--line); }
.confusion td.deep { color: var(--on-shade); }
.confusion td.sum { background: none; box-shadow: none; color: var(--soft); }
.confusion th { position: sticky; background: var(--paper); font-weight: 500; }
.confusion thead th { top: 0; z-index: 2; border-bottom: 1px solid var(--line); text-align: right; }
.confusion tbody th { left: 0; z-index: 1; border-right: 1px solid var(--line); }
.confusion thead th:first-child { left: 0; z-index: 3; text-align: left; border-right: 1px solid var(--line); }
.confusion .name { display: block; max-width: 9rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.confusion thead .name { margin-left: auto; }
.confusion.many { font-size: .75rem; } .confusion.many td, .confusion.many th { padding: .2rem .35rem; }
.confusion.many td { min-width: 1.9rem; }
.confusion.many thead .name { writing-mode: vertical-rl; text-orientation: sideways; transform: rotate(180deg);
  max-width: none; max-height: 9rem; }
@media (max-width: 30rem) {
  body { padding: 1rem 1rem 2.5rem; }
  th, td { padding: .35rem .55rem; }
  .settings th { width: 42%; }
  .confusion { font-size: .8125rem; } .confusion th, .confusion td { padding: .35rem .4rem; }
}

.gap { margin-top: 1.5rem; }

.mistakes { display: grid; gap: 1rem; padding: 0; margin: 1rem 0 0; list-style: none;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
.mistake { min-width: 0; padding: .9rem 1.1rem 1rem; border: 1px solid var(--line); border-radius: .75rem; }
.mistake header { display: flex; justify-content: space-between; gap: 1rem; color: var(--soft); font-size: .8125rem;
  font-variant-numeric: tabular-nums; }
.mistake dl { margin: 0; } .mistake dt { margin-top: .6rem; color: var(--soft); font-size: .8125rem; }
.mistake dd { margin: 0; max-height: 15rem; overflow: auto; white-space: pre-wrap; unicode-bidi: plaintext;
  /* Shadows at the ends that there is more beyond: covered where there is not. */
  background: linear-gradient(var(--paper) 40%, transparent) top / 100% 2rem no-repeat local,
    linear-gradient(transparent, var(--paper) 60%) bottom / 100% 2rem no-repeat local,
    linear-gradient(var(--line), transparent) top / 100% .6rem no-repeat scroll,
    linear-gradient(transparent, var(--line)) bottom / 100% .6rem no-repeat scroll; }
.mistake dd.expected { color: var(--good); } .mistake dd.brief { font-weight: 550; }
.mistake dd.predicted { color: var(--bad); }

details { border: 1px solid var(--line); border-radius: .5rem; }
summary { padding: .6rem .9rem; cursor: pointer; font-weight: 550; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }

@media print {
  :root { --paper: #ffffff; --ink: #000000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .box, .mistake dd { overflow: visible; max-height: none; background: none; }
  table { font-size: 8pt; } th, td { padding: .2rem .4rem; }
  .score, .mistake, figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .confusion td, .bar, .band { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
