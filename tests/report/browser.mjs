// Opens a report in Chromium and prints, as JSON, what a reader would notice.
//   node browser.mjs PAGE FOLDER        FOLDER gets screenshots and a PDF
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.POLYLOOM_BROWSER + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [page_path, folder] = process.argv.slice(2);
const address = pathToFileURL(page_path).href;
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
const found = {};
for (const [name, width, colorScheme] of [["desktop", 1280, "light"], ["phone", 360, "light"], ["dark", 1280, "dark"]]) {
  const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
  const page = await context.newPage();
  const requests = [], errors = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("console", (message) => errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("dialog", (dialog) => { errors.push("dialog: " + dialog.message()); dialog.dismiss(); });
  await page.goto(address);
  const sizes = await page.evaluate(() => ({
    page: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    links: [...document.querySelectorAll("a")].map((a) => !!document.querySelector(a.getAttribute("href"))),
    scripts: document.scripts.length,
    styled: getComputedStyle(document.querySelector(".s0")).backgroundColor === "rgb(0, 34, 78)",
    cut: [...document.querySelectorAll(".interval")].filter((e) => {
      const [cell, region] = [e, e.closest(".wide")].map((x) => x.getBoundingClientRect());
      return cell.width === 0 || cell.right > Math.min(region.right, innerWidth) + 1;
    }).map((e) => e.outerHTML.slice(0, 120)),
    small: Math.min(...[...document.querySelectorAll("svg.chart text, .forest, .beside svg text")].map((e) =>
      parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().a : 1))),
    unreachable: [...document.querySelectorAll("*")].filter((e) => e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0
      && ["auto", "scroll"].includes(getComputedStyle(e).overflowX)).map((e) => e.outerHTML.slice(0, 120)),
  }));
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  await page.evaluate(() => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  const opened = await page.evaluate(() => document.documentElement.scrollWidth);
  await page.evaluate(axe);
  const violations = await page.evaluate(async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 160) + " " + n.failureSummary) }));
  });
  found[name] = { ...sizes, opened, requests, errors, violations };
  if (name === "desktop") await page.pdf({ path: `${folder}/report.pdf`, format: "A4" });
  await context.close();
}
await browser.close();
console.log(JSON.stringify({ address, found }));
