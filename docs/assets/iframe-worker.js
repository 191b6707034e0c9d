// A page that is opened as a file may start no worker, and the theme searches in one. There, and only there, a hidden
// frame takes its place: it runs the worker's script, and passes messages to and fro.
if (location.protocol === "file:") {
  const load = (inside, address) =>
    new Promise((loaded, failed) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src: address, onload: loaded, onerror: failed });
      inside.document.head.append(script);
    });

  // Later, as a message of a real worker: whoever starts it listens when it has been started.
  const deliver = (to, data) => setTimeout(() => to.dispatchEvent(new MessageEvent("message", { data })));

  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, srcdoc: "<!doctype html>" });
      this.inside = new Promise((ready) => {
        const start = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => deliver(this, data);
          inside.importScripts = async (...more) => {
            for (const one of more) await load(inside, one);
          };
          load(inside, address).then(() => ready(inside));
        };
        frame.addEventListener("load", start, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.inside.then((inside) => deliver(inside, data));
    }
  };
}
