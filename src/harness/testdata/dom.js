// As much of a browser as a report needs: runs its script, and prints each text that the page then shows.
const page = require("fs").readFileSync(process.argv[2], "utf8");
const [data, script] = [...page.matchAll(/<script[^>]*>([^]*?)<\/script>/g)].map(found => found[1]);
const element = name => ({
  name,
  attributes: {},
  children: [],
  setAttribute(name, value) {
    if (`${value}`.match(/NaN|Infinity|undefined|null/)) throw new Error(`${this.name}.${name} = ${value}`);
    this.attributes[name] = value;
  },
  append(...children) { this.children.push(...children); },
});
const body = element("body");
const document = {
  body,
  createElement: element,
  createElementNS: (_, name) => element(name),
  getElementById: () => ({ textContent: data }),
};
new Function("document", script)(document);
const texts = node => node.name ? [`<${node.name}>`, ...node.children.flatMap(texts)] : [`${node}`];
console.log(texts(body).join("\n"));
