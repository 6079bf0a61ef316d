// Saves figures as pictures, steps through samples and judges them by keyboard.
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

    // The Review page: arrows, t and s vote, numbers label, n goes to the note.
    const judge = ({key, repeat}) => {
        const vote = {ArrowLeft: 'left', ArrowRight: 'right', t: 'tie', s: 'skip'}[key];
        const found = vote ? `vote-${vote}` : /^[1-9]$/.test(key) ? `label-${key}` : '';
        const button = found && document.getElementById(found);
        const note = key === 'n' && document.querySelector('#label-note textarea, #label-note input');
        if (button && !repeat) button.click();
        note?.focus?.();
        return Boolean(button || note);
    };

    // After a vote the address no longer names the pair that was judged, and the next one is shown from its top.
    window.recoveryNextPair = () => {
        const address = new URL(window.location);
        address.searchParams.delete('pair');
        window.history.replaceState(null, '', address);
        const next = document.querySelector('[data-pair]');
        if (!next) return;
        if (next.getBoundingClientRect().top < 0) next.scrollIntoView({block: 'start'});
        if (!document.activeElement?.closest('.judging')) next.focus({preventScroll: true});
    };

    // j and k go from sample to sample, [ and ] from page to page.
    document.addEventListener('keydown', (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.target.closest?.('input, select, textarea, [contenteditable]')) {
            if (event.key === 'Escape' && event.target.closest('#label-note')) event.target.blur();
            return;
        }
        if (judge(event)) return event.preventDefault();
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
