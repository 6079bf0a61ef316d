// Saves figures as pictures, and steps through samples by keyboard.
(() => {
    const figureOf = (name) => document.querySelector(`#${CSS.escape(name)} .js-plotly-plot`);

    document.addEventListener('click', (event) => {
        const button = event.target.closest?.('button[data-figure]');
        const figure = button && figureOf(button.dataset.figure);
        if (!figure || !window.Plotly) return;
        const box = figure.getBoundingClientRect();
        window.Plotly.downloadImage(figure, {
            format: button.dataset.format, filename: button.dataset.figure,
            width: Math.round(box.width), height: Math.round(box.height), scale: button.dataset.format === 'png' ? 2 : 1,
        });
    });

    // j and k go from sample to sample, [ and ] from page to page.
    document.addEventListener('keydown', (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.target.closest?.('input, select, textarea, [contenteditable]')) return;
        const way = {'[': 'prev', ']': 'next'}[event.key];
        if (way) document.querySelector(`a[rel=${way}]`)?.click();
        const step = {j: 1, k: -1}[event.key];
        const samples = [...document.querySelectorAll('.sample')];
        if (!step || !samples.length) return;
        const at = samples.indexOf(document.activeElement?.closest('.sample'));
        const to = samples[Math.max(0, Math.min(samples.length - 1, at < 0 ? 0 : at + step))];
        to.focus();
        to.scrollIntoView({block: 'start'});
    });
})();
