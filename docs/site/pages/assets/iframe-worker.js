// Browsers start no worker for a page that was opened as a file. There, this class runs the script of the worker in a
// hidden frame and passes the same messages, so that search works without a server.
if (window.location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event));
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessageToPage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        Promise.all(urls.map((each) => this.load(new URL(each, url).href)));
      this.ready = this.load(String(url)).then(() => {
        inside.postMessage = inside.postMessageToPage;
      });
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        Object.assign(script, { src: url, onload: done, onerror: failed });
        this.frame.contentDocument.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
