"""Texts that try to bring scripts, requests or other markup into a page that shows them."""

MARKDOWN = {
    "script": "<script>alert(1)</script>",
    "image with a handler": "<img src=x onerror=alert(1)>",
    "svg": "<svg/onload=alert(1)><animate onbegin=alert(1) attributeName=x dur=1s>",
    "svg script": "<svg><script href=data:,alert(1) /></svg>",
    "svg style": "<svg></p><style><a id='</style><img src=1 onerror=alert(1)>'>",
    "mathml": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "mathml link": '<math href="javascript:alert(1)">x</math>',
    "noscript": '<noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "template": "<template><script>alert(1)</script></template>",
    "comment": "<!--><img src=x onerror=alert(1)>-->",
    "comment in code": "`<!--` <img src=x onerror=alert(1)> `-->`",
    "processing instruction": (
        "<?xml version='1.0'?><x:script xmlns:x='http://www.w3.org/1999/xhtml'>alert(1)</x:script>"
    ),
    "cdata": "<![CDATA[><script>alert(1)</script>]]>",
    "declaration": "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>&e;",
    "frame": "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "object": "<object data=javascript:alert(1)><embed src=javascript:alert(1)>",
    "form": "<form action=javascript:alert(1)><button formaction=javascript:alert(1) autofocus onfocus=alert(1)>x",
    "base": "<base href='javascript:/a/'><a href='./-alert(1)'>x</a>",
    "meta": "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "style": "<style>@import 'http://evil.example/x.css';</style><p style='background:url(http://evil.example)'>x",
    "link element": "<link rel=stylesheet href=http://evil.example/x.css>",
    "details": "<details open ontoggle=alert(1)>x</details>",
    "block of html": "<div>\n\n*x*\n\n<script>\nalert(1)\n</script>\n\n</div>",
    "unfinished tag": "<img src=x onerror=alert(1)//",
    "javascript link": "[x](javascript:alert(1))",
    "javascript link in other case": "[x](JaVaScRiPt:alert(1))",
    "javascript link with entities": "[x](&#106;avascript&colon;alert&lpar;1&rpar;) [y](java&#x73;cript&#58;alert(1))",
    "javascript link with a tab": (
        "[x](java\tscript:alert(1)) [x](<java\tscript:alert(1)>) [x](java&Tab;script:alert(1))"
    ),
    "javascript link with a line break": "[x](<java\nscript:alert(1)>) [x](java&NewLine;script:alert(1))",
    "javascript link behind a control": (
        "[x](\x01javascript:alert(1)) [x](&#1;javascript:alert(1)) [x](%0ajavascript:alert(1))"
    ),
    "javascript link behind spaces": (
        "[x](  javascript:alert(1)) [x](<\xa0javascript:alert(1)>) [x](\u3000javascript:alert(1))"
    ),
    "javascript link with escapes": (
        "[x](java\\script:alert(1)) [x](javascript\\:alert(1)) [x](javascript&#0;:alert(1))"
    ),
    "javascript link by percent": "[x](javascript%3Aalert(1)) [x](%6Aavascript:alert(1))",
    "vbscript link": "[x](vbscript:msgbox(1)) [x](VBSCRIPT:msgbox(1))",
    "data link": "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "data image": "![x](data:image/svg+xml;base64,PHN2Zy8+) ![x](data:image/png;base64,iVBORw0KGgo=)",
    "other schemes": "[a](file:///etc/passwd) [b](blob:http://x/1) [c](about:blank) [d](view-source:x) [e](intent://x)",
    "relative link": (
        "[x](/v1/sessions) [x](../x) [x](?a=b) [x](#share=cfs_stolen) [x](//evil.example/x) [x](\\\\evil.example)"
    ),
    "http without slashes": "[x](http:alert(1)) [x](https:/x) [x](http:\\\\evil.example)",
    "autolink": "<javascript:alert(1)> <data:text/html,x> <vbscript:x> <mailto:javascript:alert(1)@x>",
    "reference": "[x]\n\n[x]: javascript:alert(1) 'title'",
    "reference in other case": "[X][y]\n\n[Y]: <JAVASCRIPT:alert(1)>",
    "image": "![x](http://evil.example/pixel.png) ![](https://evil.example/x.svg 'title')",
    "image with a javascript link": "![x](javascript:alert(1)) [![x](x)](javascript:alert(1))",
    "image in a link": "[![a](http://evil.example/a.png)](http://evil.example/b)",
    "image with a text that is markup": (
        '![" onerror="alert(1)](http://evil.example/x) ![<b onclick=x>](http://evil.example/x)'
    ),
    "title": '[x](http://evil.example \'" onmouseover="alert(1)\') [x](http://evil.example "\'onclick=alert(1)")',
    "quote in a link": '[x](http://evil.example/"onmouseover="alert(1)) [x](<http://evil.example/" onclick="alert(1)>)',
    "address with markup": 'http://evil.example/"onmouseover="alert(1) http://evil.example/<script>alert(1)</script>',
    "address with entities": "http://evil.example/&quot;onclick=alert(1)&gt;&lt;script&gt;",
    "fence": '```"><img/src=x/onerror=alert(1)>\nx\n```',
    "fence with attributes": '```js" onclick="alert(1)\nx\n``` \n~~~ x"><script>alert(1)</script>\ny\n~~~',
    "fence with entities": "```&quot;&gt;&lt;img&#32;src=x&#32;onerror=alert(1)&gt;\nx\n```",
    "fence with the end of its element": "```\n</code></pre></div><script>alert(1)</script>\n```",
    "code with the end of its element": (
        "`</code><script>alert(1)</script>` and\n\n    </code></pre><img src=x onerror=alert(1)>"
    ),
    "html as a language": "```html\n<script>alert(1)</script><img src=x onerror=alert(1)>\n```",
    "table": (
        "| <script>alert(1)</script> | [x](javascript:alert(1)) |\n|:-|-:|\n| <img src=x onerror=alert(1)> | `</td>` |"
    ),
    "table with a style": '| a |\n|:-:" style="x|\n| b |\n\n<table style="position:fixed"><td background=x>',
    "heading": "# <a id=app name=location>x</a> {#app .x onclick=alert(1)}",
    "clobbering": '<form id="document"><input name="cookie"><a id=cfs name=cfs href=http://evil.example>',
    "classes": '<div class="dialog primary">x</div> [x](http://evil.example){.button}',
    "nested": "> - [![<svg onload=alert(1)>](javascript:1)](http://evil.example/'><script>alert(1)</script>) **<b>**",
    "backslashes": "\\<script>alert(1)\\</script> \\[x](javascript:alert(1))",
    "entities": "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x onerror=alert(1)&#62; &amp;lt;b&amp;gt;",
    "nul": "<scr\0ipt>alert(1)</scr\0ipt> <img\0src=x onerror=alert(1)>",
    "wide brackets": "＜script＞alert(1)＜/script＞ \u2028<img src=x onerror=alert(1)>",
    "direction": "[\u202egpj.exe](http://evil.example) \u202e<script>alert(1)</script>",
    "template of a page": "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= x %>",
    "textarea": "<textarea><img title='</textarea><img src=x onerror=alert(1)>'>",
    "xmp": "<xmp><p title='</xmp><svg/onload=alert(1)>'>",
    "title element": "<title><p title='</title><svg/onload=alert(1)>'>",
    "foreign object": "<svg><foreignObject><iframe src=javascript:alert(1)></foreignObject></svg>",
    "mutation by a table": "<table><caption><select><style></select><img src=x onerror=alert(1)></style>",
    "mutation by forms": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "plaintext": "<plaintext><script>alert(1)</script>",
    "formula with a link": r"$\href{javascript:alert(1)}{x}$ $$\href{http://evil.example/}{x}$$ \(\url{data:x}\)",
    "formula with elements": r"$\text{<script>alert(1)</script>}$ $\mathrm{<img src=x onerror=alert(1)>}$ $a<b$",
    "formula with entities": r"$\text{&lt;script&gt;alert(1)&lt;/script&gt;}$ $\text{&#60;img onerror=alert(1)&#62;}$",
    "formula with the end of its element": r"$\text{</mtext></math><img src=x onerror=alert(1)>}$",
    "formula with other MathML": r"$\text{<mglyph><style><img src=x onerror=alert(1)></style></mglyph>}$",
    "formula with attributes": r"$\style{background:url(//evil.example)}{x}$ $\class{dialog}{x}$ \[\color{\"><b>}{x}\]",
    "formula with handlers": r'$\begin{array}{c" onload="alert(1)}x\end{array}$ $\hspace{1em" onclick="alert(1)}$',
    "formula that covers the page": r"$\rule{9999em}{9999em}$ $\hspace{100000px}$ $\rule{-9999em}{1e9em}$",
    "formula with macros": r"$\newcommand{\x}{\href{javascript:alert(1)}{y}}\x$",
    "formula that is a fence": "$$\n<script>alert(1)</script>\n$$\n\\[\n<img src=x onerror=alert(1)>\n\\]",
    "task": "- [x] <input autofocus onfocus=alert(1)>\n- [ ] <script>alert(1)</script>",
    "slot": "<slot name=x onslotchange=alert(1)></slot><x-y is=z onclick=alert(1)>",
}
"""Each is harmless when it is shown as text, or as markup of the few kinds that rendering allows."""
