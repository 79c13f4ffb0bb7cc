/* html_assets.h - the style and the program of a page, as the build embeds them: report.css and
 * report.js of this folder, as NUL-terminated strings. */
#ifndef D9DI_REPORT_HTML_ASSETS_H
#define D9DI_REPORT_HTML_ASSETS_H

extern const char d9di_report_css[];
extern const char d9di_report_js[];

#endif /* D9DI_REPORT_HTML_ASSETS_H */
