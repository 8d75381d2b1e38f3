"""Patterns for what people ask, one a line; slots as in the phrases that they widen (see `variation`)."""

# ruff: noqa: E501 - patterns are read and kept as text

# -- talk -------------------------------------------------------------------------------------------------------------

TELL_NAME = """
[hi|hello|hey|hey there|hiya|good day|howdy|], [I am|I'm|my name is|my name's|it's|it is|this is|you can call me|they call me] *[.|!|]
[so|well|ok|oh|by the way|btw|for your information|just so you know], [I am|I'm|my name is|I'm called|people call me|everybody calls me] *[.|]
[you may|you can|feel free to|please|just|do] [call|name] me *[, ok?|.|!||, please]
[everyone|my mother|my family|most people|my colleagues|my mates|all my friends|my boss] [calls|call] me *[.|]
* is [my name|what I am called|what they call me|how people know me|the name][.|!|]
[remember|keep in mind|note|don't forget|please remember|try to remember][:| that| this:] [my name is|I am|I'm|I'm called] *[.|]
I [was named|am known as|am called|introduce myself as|usually go by the name|answer to the name|sign as] *[.|]
[first name|name|my first name|user name|username][:| is| -| =] *
[it is|it's] * [here|speaking|writing|again][.|]
[you are|you're] [talking|speaking|chatting] [to|with] *[.|, by the way]
[hello|hi], [I am|I'm] * and I [live in|come from|am from|work in|study in] [a small town|the north|Madrid|Texas|Kenya|the mountains][.|]
[I am|I'm|my name is] *[ and I am| and I'm|, a|, I'm] [new here|a student|happy to be here|27 years old|your user|hungry][.|]
[I am|I'm|my name is|call me] *, [not|and not] [you|the other one|somebody else][.|]
[let me start with my name|about me|first things first]: [I am |I'm |]*[.|]
* [is here|here|speaking][.|!|]
"""
TELL_NAME_ZH = """
[嗨|喂|你好|您好|哈喽|大家好|晚上好|下午好|那个|对了][，|！|,][我叫|我是|本人|我的名字是|我名字叫|我的名字叫|在下|叫我]*[。|！||呀]
[你可以|您可以|以后|就|朋友们|同事们|家里人|别人|人们|同学们][都|]叫我*[。|就好|就行|吧|]
[记住|请记得|别忘了|记一下|请记下|要记住][，|：|][我叫|我是|我的名字是|我的名字：]*[。|]
*是我的名字[。|]
[姓名|名字|用户名|我的名字][：|:|是|就是]*
[我是|我叫]*，[来自上海|刚来这里|是个学生|很高兴见到你|今年20岁|住在山里][。|]
[这里是|这边是|我这边是]*[。|]
[正式介绍一下|自我介绍一下|介绍一下自己|先说一下][，|：][我叫|我是|我的名字是]*[。|]
"""
ASK_NAME = """
[what|wht|whats|what's|what is|what was] my name[ again| by the way| now| please|][?|]
[do|can|could] you [still |][remember|recall|tell me|say|know|repeat] [my name|what I am called|what I'm called|who I am|how I am called|what my name is|the name I gave you][ please|][?|]
[and|so|then|ok, now|now|well,|hey,] [what's|what is|what was|tell me] my name[?| again?|]
[please |][tell|remind] me [of my name|what my name is|what I'm called|who I am|my own name][.| please|]
[which|what] name [did I give you|did I tell you|have I told you|do I have|am I called by|do people call me by][ earlier| before|][?|]
[my|say my|tell me my|give me my|spell my|write my|repeat my|use my] name[?|, please|.|!]
[who|whom] [am I|are you talking to|are you speaking with|is talking to you|is writing to you][ again|][?|]
[how|what] [do|should|would|will] you [call|address|name] me[?|]
[what|how] do [people|they|others|my mates|my family|my colleagues|the others] call me[?| again?|]
[do you know|you know|remember|you remember|can you recall] [who I am|my name|what I'm called][?|]
[I forgot my name|I forget things|my memory is bad|quiz time|test][:|,|.] [what is it|who am I|what is my name|what's my name][?|]
[greet|address|thank] me [by|with|using] my name[.|, please|]
[my name was|my name is|I am called|I'm|they call me][...| ...|: ?|, what?| what?]
what did I [say|tell you] [I was called|my name is|I am called|my name was][?|]
"""
ASK_NAME_ZH = """
[我|那我|所以我|请问我|嘿，我|现在我|刚才我说我][叫什么|叫啥|叫什么名字|是谁|的名字是什么|的名字是啥|的名字是|怎么称呼][呢|来着||呀][？|?|]
[你|您][还|][记得|知道|记不记得|知不知道|能说出|能告诉我][我叫什么|我是谁|我的名字|我叫啥|我的名字是什么|怎么称呼我][吗|][？|?|]
[告诉我|说说|说一下|请说|提醒我|说出|写出|重复一下|请重复][我的名字|我叫什么|我是谁][。|吧|一下||，好吗？]
[大家|别人|朋友们|同事们|人们]叫我什么[？|?|]
[我忘了自己叫什么|考考你|测试一下|我记性不好][，|：|。][我叫什么|我是谁|我的名字是什么][？|]
[你在和谁说话|你在跟谁聊天|你应该怎么称呼我|你该叫我什么|你怎么称呼我|我给你的名字是什么|我刚才告诉你的名字是什么][？|?|]
"""
CORRECT_NAME = """
[no|oops|sorry|wait|hold on|my mistake|I was wrong|not quite|that was wrong][,|.|:|!] [it's|it is|I am|I'm|my name is|I meant|call me|the right name is] *[.|!|]
[from now on|from today|in future|please|better] call me * [instead|from now on|][.|]
[my name is really|I'm really|my real name is|I am in fact|I changed it:|new name:|the correct name is] *[.|]
"""
CORRECT_NAME_ZH = """
[不|不对|错了|等等|抱歉|我说错了|更正][，|：|,][我叫|我是|我的名字是|应该是|叫我]*[。|]
[今后|以后|从现在起|还是|从今天起][请|][叫我|称呼我|改叫我]*[吧|。||好了]
[我真正的名字是|我的真名是|我的新名字是|正确的名字是|我现在叫]*[。|]
"""
TELL_KIN = """
[I have a #|there is my #|meet my #|this is my #|here is my #], [called|named|whose name is|her name is|his name is|by the name of] *[.|]
[* is|* is the name of|* is what we call] my #[.|]
my # [goes by|answers to|is known as|has the name|is] *[.|]
[we call|I call|everybody calls|they named|I named] my # *[.|]
"""
TELL_KIN_ZH = """
[我有一个#|我家#|我的#|这是我的#|我#][，名字|，|，他|，她|，大家都][叫|名叫|名字是|叫做]*[。|]
*是我[的|]#[。|的名字]
"""
ASK_KIN = """
[what|whats|what's|how] [is|] my # called[?|]
[tell me|say|give me|do you know|do you remember|can you tell me|remind me of] my #'s name[?|.|]
[how do I call|what do I call|what do we call|what did I name|which name has] my #[?|]
[and|so|then] my #[?|'s name?| is called?]
"""
ASK_KIN_ZH = """
[告诉我|说说|你记得|你知道|请问][我|我的]#[叫什么|的名字|叫啥|的名字是什么][？|。|吗？|]
[那|]我[的|]#[呢|叫啥|叫什么来着|是谁|怎么称呼][？|]
"""
TELL_FAVOURITE = """
[I|I really|I truly|I absolutely] [love|like|prefer|adore|enjoy] * [more than any other #|most of all #s|most, as a # goes|best of every #]
[my fav|my favorite|my favourite|my best loved|my top|the best] # [is|:|=|would be|has always been] *[.|!|]
[fav|favourite|favorite|preferred|best] #[:| -| =| is] *
[the|a] # [that I|I|which I] [like best|like most|love most|prefer|love the most|enjoy the most|am fond of] is *[.|]
[when it comes to a #|as for a #|of every #|if I have to choose a #|as my #], I [choose|pick|take|love|like|prefer|want] *[.|]
[just so you know|note that|remember|for later|keep in mind|fyi], my [favorite|favourite|fav|best] # is *[.|]
* is [the best #|the # I love|the # for me|the # I like most|my # of choice|clearly my favorite #][.|!|]
"""
TELL_FAVOURITE_ZH = """
[我|我特别|我最|我真的很|我一直]喜欢的#[是|：|就是]*[。|！|]
[在所有#里|说到#|论#|要说#的话][，|,]我[最喜欢|最爱|选|喜欢|觉得最好的是]*[。|]
[记住|记一下|请记得|顺便说一下|对了][，|：]我[最|]喜欢的#是*[。|]
*是[我最爱的|最好的|我喜欢的]#[。|]
[最喜欢的#|最爱的#|首选#][：|:|=|是]*
"""
ASK_FAVOURITE = """
[what|whats|what's|what is|which is|and what is|so what's] my [fav|favorite|favourite|best loved|preferred|top] #[?| again?|]
[which|what] # do I [like best|love most|like the most|prefer|love|enjoy most|like][?|]
[do you|can you|could you] [still |][remember|recall|name|tell me|know|say] [my favourite #|my favorite #|which # I like|which # I love most|the # I like best][?|]
[remind me|tell me|say]: [what is my favourite #|which # do I like most|my favorite #][?|]
[remind me of|name|give me|tell me] my [fav|favorite|favourite] #[.| please|]
my [favourite|favorite|fav] #[?| is?| was?| is...]
"""
ASK_FAVOURITE_ZH = """
[你|您][还|][记得|知道|能说出][我|][最|]喜欢[的#是什么|什么#|哪个#|哪种#][吗|][？|?|]
[我|那我|请问我][最|]喜欢[的#是什么|什么#|哪个#|哪种#|的#][呢|来着|][？|?|]
[告诉我|说说|提醒我]我[最|]喜欢的#[是什么|][。|？|]
[我最爱的#|我喜欢的#|我的首选#][呢|是|是什么|是啥][？|]
"""
TELL_FACT = """
[for the record|fyi|note|please note|just so you know|by the way|remember this|important][:|,] the # is *[.|]
[we chose|I chose|they gave us|I got|take|use] * [as|for] the #[.|]
* is [the|our|my] #[.|!|, remember it.]
[our|my|the|today's] # [is|will be|:|=|was set to|is now] *[.|]
"""
TELL_FACT_ZH = """
[记住|请记下|备忘|注意|提醒你|顺便说一下][，|：][我们的|我的|]#[是|为|：]*[。|]
*[就是|是][我们的|我的|]#[。|，请记住]
"""
ASK_FACT = """
[what|whats|what's] [was|is] [the|our|my] #[ again| now|][?|]
[remind me of|give me|repeat|say|show me|I need] the #[.| please|, please|]
[do you|can you|could you] [still |][know|recall|tell me|remember|repeat] [the|our] #[?|]
"""
ASK_FACT_ZH = """
[你|您][还|][记得|知道|能告诉我][我们的|我的|]#[吗|是什么吗|是多少吗][？|]
[那|请问|所以][我们的|我的|]#[呢|是多少|是什么|是啥][？|]
[再说一遍|重复一下|告诉我|给我]#[。|吧|]
"""
REPEAT = """
[say|repeat|write|echo|output|return|print|answer with|reply with|respond with|type] [this|the following|these words|just this|only this|exactly that][:| :| -] *
[please |can you |could you |will you |would you |][say|repeat|echo|write|copy|type] ["*"|'*'|: *|"*" for me|the words "*"|the phrase "*"|the text '*'|the sentence: *|the word: *]
[say|repeat|write|copy|echo|parrot] ["*"|'*'|*] [back|back to me|word for word|again|exactly|letter by letter|verbatim][.|]
[repeat after me|after me|speak after me|copy me|echo me|say it like me|same words, please][,|:|...] *
[just|only|simply] [say|write|reply|answer] ["*"|'*'|: *][ and nothing else|, nothing more| and stop|][.|]
[write|type|copy|output|give me] [the line|this line|this text|this phrase|this sentence|the words|the exact words][:|] ["*"|'*'|*]
[I say|if I say|when I say] "*", you [repeat it|say the same|say it too][.|]
["*"|'*'] - [repeat|say it|repeat that|now you|copy this|echo it]
"""
REPEAT_ZH = """
[跟着我|请跟我|随我|照着|原样|一字不差地|逐字|请|][说|念|读|重复|复述|输出|写|回复][：|:|一遍：|一下：|这句话：|这几个字：|下面的话：|以下内容：]*
[请|你|现在|只|就|能不能|][说|重复|复述|回答|念|写][“*”|"*"|“*”这句话|“*”这几个字][。||吧|一遍|，不要说别的|就行]
[把|请把|麻烦把]“*”[重复一遍|说一遍|念出来|复述一遍|再说一次|写出来][。|]
"""
SUMS = """
[what|whats|what's|what is|how much is|how much does|tell me|do you know|work out|compute|calculate|solve|give me] # + *[?| =| make?|]
[add up|add|sum|sum up|total] #+*
# [@] * [is|equals|makes|gives|=][ what| how much|...|][?|]
[and|so|now|ok] # [@|+] *[?|]
[what do you get for|what is the result of|the answer to|how many is|can you do|please solve] # [@|+] *[?|]
#+* [=|= ?|equals|please|?|makes what?]
"""
SUMS_ZH = """
[请问|那么|算一下|算算|帮我算|计算一下|求|请计算|告诉我|问一下][，|]#[@|+]*[等于几|是多少|等于多少|得多少|的结果|是几|][？|。|]
#[@|+]*[=|＝|等于|得]？
"""
SPOKEN_PLUS = """
[what|whats|what's|what is|how much is|tell me|calculate|compute|work out] # [plus|and|added to|+] *[?|]
[can you |could you |please |would you |][add|sum up|sum|total|put together] # and *[ for me| please|][?|.|]
[what is|what's|give me|find|tell me|compute] the [sum|total] of # and *[?|.|]
[I have|there are|Tom has|she buys|we see|he finds] # [apples|coins|books|eggs|birds|sweets] and [get|find|buy|then|take] * more[. How many is that?|. How many are there now?|, how many in total?|, what is the total?]
[if you|if I|when you|let's] add * to #[, what do you get?|, how many is that?|, what is it?|?|]
[a sum|sum|maths|quick question|math question]: # [plus|and|+] *[?|]
* more than #[?| is what?| is how much?]
"""
SPOKEN_MINUS = """
[what|whats|what's|what is|how much is|tell me|calculate|compute|work out] # [minus|less|take away|subtract|-] *[?|]
[can you |could you |please |would you |][subtract|take|deduct|remove] * from #[ for me| please|][?|.|]
[what is|what's|give me|find|tell me] the difference [of|between] # and *[?|.|]
[I have|there are|Tom has|she owns|we had|he had] # [apples|coins|books|eggs|birds|sweets] and [lose|give away|eat|sell|drop] *[. How many are left?|, how many remain?|. What remains?|, what is left?]
[take|subtract|remove] * [away |]from #[, what remains?|: what do you get?|, how much is that?|, what's left over?|]
[if|when] [you|she|we] [subtract|remove|take] * from #[, what do you get?|, what remains?|, how many are left?|?]
* less than #[?| is what?| is how much?]
"""
SPOKEN_PLUS_ZH = """
[请问|问一下|算一下|]#[加|加上|和|再加]*[等于几|是多少|等于多少|一共是多少|得几|是几|一共多少][？|?|]
[把|]#和*加起来[等于几|是多少|得多少|][？|]
[我有|桌上有|小明有|他有]#个[苹果|橘子|鸡蛋|球|糖]，又[买了|得到|来了|拿了]*个[，|。][一共有几个|现在有多少|总共多少|有几个][？|]
"""
SPOKEN_MINUS_ZH = """
[请问|问一下|算一下|]#[减|减去|减掉|去掉]*[等于几|是多少|等于多少|得几|是几|剩多少|还剩几][？|?|]
从#[里|中|][减去|拿走|去掉|减掉]*[，|][还剩多少|等于几|是多少|剩下几个|得几][？|]
[我有|桌上有|小明有|他有]#个[苹果|橘子|鸡蛋|球|糖]，[吃了|丢了|给了你|卖了]*个[，|。][还剩几个|剩下多少|还有多少|剩几个][？|]
"""
ASK_JOKE = """
[tell|give|send|make|write|crack] [me|us|] [a|another|one|a good|a short|a new|your best|a silly|some|a quick] [joke|jokes|pun|funny story|funny line][.|!|?|]
[do you have|have you got|do you know|got|any] [a joke|any jokes|a good one|something funny|jokes|a funny story][ for me| today|][?|]
[I want|I need|I would like|I'd love|I'd like] [to laugh|a joke|something funny|to hear something funny|a good laugh|another joke][.|!|]
[say|tell me|write|show me|let me hear] something [funny|hilarious|that makes me laugh|amusing|witty][.|!| please|]
[make me|let me|can you make me|could you make me|please make me] [laugh|smile|giggle|chuckle][.|?|!| please|]
[joke|jokes|a joke|humour me|humor me|entertain me|cheer me up|be funny|one more|another one|amuse me][!|?|.| please|, please|]
[I'm|I am] [bored|sad|feeling down|in a bad mood][,|.|:] [tell me a joke|cheer me up|make me laugh|a joke please][.|!|]
"""
ASK_JOKE_ZH = """
[给我|请|再|能不能|可以|快|][讲|说|来][个|一个|一则|几个][笑话|好笑的笑话|段子|冷笑话|有趣的事|搞笑的][吧|吗|听||，好吗][？|。|！|]
[逗我|让我|能让我][开心|笑一笑|乐一乐|笑一个|开心一下][吗|吧|][。|？|]
[我想|我要|我好想]听[笑话|个笑话|好笑的|有趣的故事|段子][。|]
[有没有|有什么|知道什么][笑话|好笑的事|好笑的|有趣的][吗|][？|?|]
[好无聊|我不开心|心情不好|今天很累][，|。][讲个笑话|说个笑话|逗逗我|来个段子][吧|][。|]
"""
GIVE_ROLE = """
[act|behave|answer|speak|talk|reply|respond|write] [as|like|as if you were] *[.|!| from now on.|, please|]
[pretend|imagine|suppose|let's say|let us say|make believe][ that|] you are *[.|!|]
[pretend|try|I want you|you need|your job is|you have|learn] to be *[.|!|]
[from now on|today|for this chat|in this conversation|now|for the next hour|starting now][,|] you are *[.|]
[you are|you're|be|become|play|play the part of|take the role of|take on the role of|you play|impersonate] *[ now|][.|!|]
[your role|role|your new role|your job|your part|persona][:| is| is that of| will be] *[.|]
"""
GIVE_ROLE_ZH = """
[请|现在|假设|想象|从今以后|接下来|在这次对话里|今天|][你|您]是[一位|一个|一名|一只|]*[。|！||，明白吗？]
[扮演|请扮演|你来扮演|来扮演|你演|请你演|装作|假装是|请装成|充当][一位|一个|一名|一只|]*[。|吧|]
[你的角色|角色|你的身份|你的职业][是|：|就是][一位|一个|一名|一只|]*[。|]
[像|请像|以][一位|一个|一名|一只|]*[一样说话|一样回答|的身份回答][。|]
"""
ASK_ROLE = """
[who|what] are you[ now| right now| again| exactly| today|][?|]
[who|whom] am I [talking|speaking|chatting|writing] [to|with][ now|][?|]
[what|which] [is|'s] your [role|job|part|profession|persona|occupation|identity][ now| here|][?|]
[what|which] [role|part] do you [play|have|take][?|]
[tell me|say|do you know|can you say] [who you are|what you are|your role|what your role is|your job][.|?|]
[what do you do|what is it that you do|what do you do for a living|what are you supposed to be|who are you supposed to be][?|]
"""
ASK_ROLE_ZH = """
[你|您|请问你|那你][是谁|是什么|是做什么的|是干什么的|是什么人|现在是谁|扮演谁|的角色是什么|的身份是什么|的职业是什么|的工作是什么|做什么工作][呢|呀|][？|?|]
[我在和谁说话|我在跟谁聊天|告诉我你是谁|说说你是谁|你的职业|你的身份][？|?|。|]
"""
GREETING = """
[hi|hello|hey|hiya|heya|howdy|yo|sup|helo|hallo|hullo|hi hi|hey hey][ there| you| again| bot| friend| model| everyone| buddy|][!|.| :)||!!]
[good|a good|a very good] [morning|evening|afternoon|day][ to you| there| everyone|][!|.|]
[greetings|salutations|welcome|aloha|morning|evening|hey, what's up|what's up|anybody there|is anyone there|are you awake|nice to see you|nice to meet you][!|.|?|]
"""
GREETING_ZH = """
[你好|您好|嗨|哈喽|喂|嘿|你好呀|你们好|哈罗|早|早安|上午好|中午好|下午好|晚上好|晚安好|各位好][啊|呀|！|。||，朋友|，在吗|，机器人]
[有人在吗|在不在|你在吗|在么|很高兴见到你|好久不见][？|?|！|]
"""
WELLNESS = """
[hi|hello|hey|so|good morning|hey there|], how [are you|are you doing|is it going|are things|do you feel|have you been|is your day|'s life|'s it going][ today| now|][?|!|]
[how are you|how do you do|how's everything|are you well|are you ok|you ok|how goes it|how is everything][ today| my friend|][?|]
"""
WELLNESS_ZH = """
[你好|嗨|嘿|那|哈喽|][，|,|][你|您][今天|最近|现在|][好吗|怎么样|还好吗|过得好吗|过得怎么样|感觉如何][？|?|]
"""
THANKS = """
[thank you|thanks|thx|ty|many thanks|thanks a lot|thank you so much|thanks a million|cheers|much appreciated|great, thanks|ok thanks|perfect, thank you|cool, thanks][!|.| :)| for that| for your help|]
"""
THANKS_ZH = """
[谢谢|多谢|谢了|感谢|非常感谢|太谢谢了|好的，谢谢|谢谢啦|辛苦了][你|您|！|。||你的帮助]
"""
BYE = """
[bye|goodbye|good bye|bye bye|see you|see ya|see you later|see you soon|cya|farewell|good night|later|so long|I have to go|I must go|talk to you later|take care|that's all|that is all][!|.| now| then|, thanks|]
[thanks|ok|great|thank you|well][,|] [bye|goodbye|see you|good night|that is all|bye for now|I'm off][!|.|]
"""
BYE_ZH = """
[再见|拜拜|回见|回头见|明天见|我走了|先这样|下次聊|晚安|我要走了|告辞][！|。||了|，谢谢]
[谢谢|好的|好了|多谢][，|][再见|拜拜|下次见|先这样|晚安][！|。|]
"""

# -- tasks with files ---------------------------------------------------------------------------------------------------

WRITE = """
[create|make|add|write|start|produce|set up|generate|prepare] [a|a new|the|one|some] [file|text file|document|note] [called|named|with the name|titled|by the name of|] # [that says|saying|with|containing|that contains|which contains|with the text|with the content|with the contents|with content|holding|which says|and write into it|whose content is|that has] *
[create|make|write|add] # [with the text|with content|saying|that says|containing|with|with the words|holding|with this content:|with this text:|and put in it:|with exactly this text:] *
[write|save|put|store|place|add|enter|record|note|note down|jot down|type|insert|drop|dump|keep|leave|stick] [the text|the words|the line|this:|the word|the sentence|the note|the phrase|] * [to|into|in|inside] [a file called|a file named|the file|a new file|a new file called|a file|file|] #
[I need|I want|I'd like|we need|give me|there should be|let there be|let me have] [a file|a text file|the file|a new file|a document] [called|named|] # [containing|with|that says|saying|with the text|with the words|with the content|that contains] *
# [should contain|should say|must contain|must say|needs to say|has to contain|should have|is to contain|should read|gets the content|gets|shall say|needs the text] *
# [should contain|should say|must contain|must say|is to hold] *[. Make it.|. Create it.|. Write it.|. Please do it.|, create it]
[in|into|to|inside] [the file |a file called |a new file |a file named |file |]#[,|] [write|put|save|store|add|note|type] [the text|the words|] *
[file|file name|filename|name|path]: #[,|;|.] [content|contents|text|with]: *
[make|create|write] [me |][a file|a new file|a text file|this file|the following file]: [name|file name|path|] #, [content|contents|text] *
[fill|update|overwrite|replace|set] [the file |]# [with|to] *
[save|store|keep] [as|under] #: *
# <- *
* -> #
* [goes|belongs|should go|has to go] [into|in] [the file |]#
[store|save|remember|keep] * [for me |][in|under|as] #
[echo|print] * > #
"""
WRITE_QUOTED = """
[create|make|add|write|start|produce|set up|generate] [a|a new|the|one] [file|text file|document|note] [called|named|with the name|titled|] # [that says|saying|with|containing|that contains|which contains|with the text|with the content|with the contents|holding|which says] ["*"|'*'|“*”|`*`]
[create|make|write|add] # [with the text|with content|saying|that says|containing|with|with the words|(content:|, content] ["*"|'*'|“*”]
[write|save|put|store|place|add|enter|record|note|note down|jot down|type|insert|drop|dump|keep|stick] [the text|the words|the line|the word|the sentence|the note|] ["*"|'*'|“*”|`*`] [to|into|in|inside] [a file called|a file named|the file|a new file|a new file called|a file|file|] #
[I need|I want|I'd like|we need|give me|there should be] [a file|a text file|the file|a new file|a document] [called|named|] # [containing|with|that says|saying|with the text|with the words|that contains] ["*"|'*']
# [should contain|should say|must contain|must say|needs to say|has to contain|should have|is to contain|should read|gets] ["*"|'*'|“*”]
# [should contain|should say|must contain|must say|is to hold] ["*"|'*'][. Make it.|. Create it.|. Write it.|. Please do it.]
[in|into|to|inside] [the file |a file called |a new file |a file named |]#[,|] [write|put|save|store|add|note] [the text|the words|] ["*"|'*'|“*”]
[file|file name|filename|name|path]: #[,|;|.] [content|contents|text]: ["*"|'*']
[fill|update|overwrite|replace|set] [the file |]# [with|to] ["*"|'*']
["*"|'*'] [goes|belongs|should go|has to go] [into|in] [the file |]#
[echo|print] ["*"|'*'] > #
# [<-|=|:] "*"
"""
WRITE_ZH = """
[新建|创建|建立|生成|写|做|建][一个|个|][文件|文本文件|名为|叫|名叫|文档|]#[，|,| ，|][内容|里面写|内容为|内容是|内容写|里面放|写上|写入|里面的内容是][ |：|]*
[把|将|请把|麻烦把|帮我把][ |]*[ |][写进|写入|写到|存到|存进|保存到|保存在|放进|放到|记到|记在|记录到|加到][文件|一个叫|][ |]#[里|中|里面|]
[在|往|到][文件|][ |]#[里|中|里面|][写|写上|写入|保存|放|加上|记下|存][ |：]*
[我要|我想要|我需要|给我|需要|来][一个|个][文件|叫|名为|叫做][ |]#[，|][内容是|里面写着|写着|内容][ |：]*
[文件名|文件|名字][：|是|][ |]#[，|；|][内容|文字|正文][：|是|][ |]*
#[里|的内容|里面][应该是|要写|写|应该写|要有|必须是][ |：]*
"""
WRITE_QUOTED_ZH = """
[新建|创建|建立|生成|写|做|建][一个|个|][文件|文本文件|名为|叫|名叫|文档|]#[，|,|][内容|里面写|内容为|内容是|内容写|里面放|写上|写入|里面的内容是][“*”|"*"|「*」]
[把|将|请把|麻烦把|帮我把][“*”|"*"|「*」][写进|写入|写到|存到|存进|保存到|保存在|放进|放到|记到|记在|记录到|加到][文件|一个叫|][ |]#[里|中|里面|]
[在|往|到][文件|][ |]#[里|中|里面|][写|写上|写入|保存|放|加上|记下|存][“*”|"*"]
[我要|我想要|我需要|给我|需要|来][一个|个][文件|叫|名为|叫做][ |]#[，|][内容是|里面写着|写着|内容][“*”|"*"]
[文件名|文件|名字][：|是|][ |]#[，|；|][内容|文字|正文][：|是|][“*”|"*"]
#[里|的内容|里面][应该是|要写|写|应该写|要有|必须是][“*”|"*"]
"""
READ = """
[read|open|show|print|display|cat|view|load|fetch|check|inspect|output|type out] [me |][the file |file |]#[ for me| to me| please| aloud| out|][.|]
[show|give|tell|send|read] me [the contents|the content|the text|everything in|what is in|what's in|what stands in|what is written in|the words in|what it says in] [of |][the file |]#[.| please|]
[what|whats|what's|what is] [is |][in|inside|written in|stored in|the content of|the text of|saved in|the contents of] [the file |file |]#[?|]
[what|whatever] does [the file |]# [say|contain|hold|read|have in it|have inside][?|]
[open|look at|look into|look inside|go through|have a look at|take a look at|check] [the file |]#[ and| then|, then|] [tell|show|read] me what [it says|is in it|it contains|you find|you see|is inside|stands there][.|]
[I would like|I want|I need|I'd like] to [read|see|know] [what is in|what's in|the contents of|the text in|what I wrote in|] [the file |]#[.|]
[I forgot|I can't remember|I don't know|I have no idea|do you know] what [is in|I put in|I wrote in|I saved in|it says in|we wrote in] [the file |]#[, tell me|. Look it up.|, show me|. Read it to me.|, can you look?|, please read it|]
[is there anything in|does anything stand in|anything inside] #[?| Show me.| Read it.]
[let me see|let me read|let me have a look at|let's see|let's open|let's read] [the file |]#[.|]
# [- read it|- open it|please|, what does it say?|: what's in it?|, read it to me|, show it]
[read out|read aloud|quote|recite|summarise|repeat] [what is in |the text of |the file |]#[.|]
"""
READ_ZH = """
[帮我|请|麻烦|请帮我|给我|能不能|我想|让我|来|][看看|看一下|看下|读读|读一下|读出|打开|查看|显示|念一下|瞧瞧|展示|输出]文件[ |]#[的内容|里写了什么|里有什么|里面的内容|里的文字|写了些什么||里写着什么][。|？|吗？|]
[帮我|请|麻烦|请帮我|给我|能不能|我想|让我|来|][看看|看一下|看下|读读|读一下|读出|打开|查看|显示|念一下|瞧瞧|展示][ |]#[ |][的内容|里写了什么|里有什么|里面的内容|里的文字|写了些什么||里写着什么][。|？|吗？|]
[文件|][ |]#[ |][里|里面|中][写着什么|都写了啥|有什么内容|是什么内容|写了什么|有啥|的内容是什么][？|?|]
[我忘了|我不记得|告诉我|我想知道|你知道][ |]#[ |][里|里面][写了什么|有什么|是什么][，帮我看看|。||吗？|，读一下]
把[ |]#[ |][读给我听|念给我听|打开看看|的内容告诉我|读出来|的内容给我][。|]
"""
AND_READ = """
[, then| and then|. Then|, and afterwards| and after that|; then|. Next,|. After that| and] [show me|tell me|read me|read out|print|display|check|give me] [what it says|what the file says|what's in it|what is in the file|its content|the contents|its contents|the result|what it contains][.|]
[, then| and then|. Then|, and afterwards| and after that|; then|. Next,| and] [read|open|print|show|load|check] [it|the file|that file|it again|the file again|it back to me|it out][.| to me.| please.|]
[. What does it say now?|. What is in it now?|. What does the file contain?|, and what's in it?|. Show me the file.|. Prove it by reading it.|, and read it aloud|. Let me see it.]
"""
AND_READ_ZH = """
[，|。|,][然后|再|接着|之后|最后|并|随后|完了][读出来|读给我|念给我听|读给我看|打开看看|读一遍|读回来|把内容告诉我|显示内容|念一遍|给我看内容|看看里面写了什么|读一读][。||吧|看看]
[，|。][里面现在是什么？|现在写了什么？|让我看看内容。|读出来确认。]
"""
AND_LIST = """
[, then| and then|. Then|, and afterwards| and after that|; then|. Next,| and| and finally] [list|show me|print|show|display|tell me] [the files|all files|what is there|the folder|everything|what files there are|the contents of the folder|which files exist|the workspace][.|]
[. What files are there now?|. Which files do we have now?|. What is in the folder now?|, and which files are there?]
"""
AND_LIST_ZH = """
[，|。][然后|再|接着|之后|最后|并][列一下文件|列出所有文件|列出目录|看看有什么文件|显示文件列表|告诉我有哪些文件|看看目录][。|]
[，|。][现在有哪些文件？|目录里有什么？]
"""
TWO = """
[create|make|write|add|produce|I need|I want|give me|set up] [two files|2 files|these two files|these files|a pair of files|the following files|both files|][:| -|,] # [with|saying|containing|that says|with the text|=|:|- content] *[,| and|;|, and|.] @ [with|saying|containing|that says|with the text|=|:|- content] ~
[create|make|write] # [saying|with|that says|containing|with content|with the text|holding] ["*"|'*'|*] [and|, and|plus|and also|, then] @ [saying|with|that says|containing|with content|with the text|holding] ["~"|'~'|~]
[create|make|write] a file # [saying|with|that says|containing|with content|with the text|holding] ["*"|'*'|*] and [a|another|a second|one more] file @ [saying|with|that says|containing|with content|with the text|holding] ["~"|'~'|~]
[write|put|save|store] ["*"|'*'|*] [to|into|in] # and ["~"|'~'|~] [to|into|in] @[.|]
[write|put|save|store] ["*"|'*'|*] [to|into|in] #[.|;|,] [write|put|save|store|then|and also] ["~"|'~'|~] [to|into|in] @[.|]
# [should say|gets|contains|should contain|=|is] ["*"|'*'|*][,| and|;|.] @ [should say|gets|contains|should contain|=|is] ["~"|'~'|~][.|]
[first|start with|begin with] # [saying|with|containing] ["*"|'*'|*], [then|next|after that] @ [saying|with|containing] ["~"|'~'|~]
"""
TWO_ZH = """
[新建|创建|写|建立|做|生成][两个文件|2个文件|这两个文件|][：|，|]#[，|][内容|写|里面写|内容是|写上]["*"|“*”|*|：*][，|；|。|和|，还有|，另外|，再创建|，再新建]@[，|][内容|写|里面写|内容是|写上]["~"|“~”|~|：~][。|]
[先|][创建|新建|写|建][ |]#[ |][，|][里面写|写上|内容为|内容是][ |]["*"|“*”|*][，|。|；][再|然后|接着|也][创建|新建|写|建][ |]@[ |][，|][里面写|写上|内容为|内容是][ |]["~"|“~”|~][。|]
[把|将][“*”|*][写进|放进|存到|写到]#[，|；|。][把|再把|也把|将][“~”|~][写进|放进|存到|写到]@[。|]
"""
AND_READ_BOTH = """
[, then| and then|. Then|, and afterwards| and after that] [show me|read|open|print] [both|both of them|the two files|both files|them both|each of them][.| again.|]
"""
AND_READ_BOTH_ZH = """
[，|。][然后|再|接着|最后][把两个都读一遍|都读出来|两个都念给我听|把它们都读回来|都打开看看][。|]
"""
SEARCH = """
[find|search|look|search for|look for|locate|hunt for|grep|grep for|check for|scan for] ["*"|'*'|*|the word *|the text "*"|the word "*"|the string '*'] [in|in all|across|within|inside|through] [the files|my files|the workspace|the folder|all files|everything|this directory|the documents|these files|here][.|]
[which|what] [file|files|of the files|one of the files|document|of these files] [contain|contains|mention|mentions|has|have|include|includes|talk about|talks about|say|says] ["*"|'*'|*|the word *|the text "*"|the word "*"][?|]
[in which|in what] [file|document|place] [is|do I find|can I find|did I write|stands|do we have|appears|do I mention] ["*"|'*'|*|the word "*"][?|]
[where|in which file] [is|do I have|did I write|did I mention|can I find|do we use|do we mention|does it say|appears] ["*"|'*'|*][?|]
[tell me|show me|find out|I want to know|find|figure out|give me] [which file|the file that|which document|the files that|what file] [mentions|contains|has|says|includes] ["*"|'*'|*|the word *][.|]
[grep|search|find] ["*"|'*'|*]
[is|does] ["*"|'*'] [mentioned|anywhere|written] in [one of the files|the files|my notes|any file][?|]
[I am looking for|I'm looking for|I need to find|help me find] [the file with |the word |]["*"|'*'|*][ in my files|][.|]
"""
SEARCH_ZH = """
[哪个|哪些|哪一个|什么][文件|文档][里|中|里面|][提到|包含|有|写了|出现|含有|提到了|提及][了|过|][“*”|*|"*"][？|?|]
[帮我|请|在所有文件里|在文件中|在工作区|麻烦|全部文件里|][找|搜|查|搜索|查找|找找|搜一下|查一下][“*”|*|"*"|含有*的文件|提到“*”的文件|“*”在哪个文件][。|]
[“*”|*][在哪|在哪里|在哪个文件里|出现在哪个文件|写在哪儿了|写在哪个文件里][？|?|]
[告诉我|看看|我想知道|找出]哪个文件[提到|包含|有|写了][“*”|*][。|]
"""
LIST_ALL = """
[list|show|show me|print|display|name|give me|enumerate|tell me] [the|all|all the|every|my|our|your|these] [files|documents|file names|contents|stuff|files and folders|things][ here| you see| in the folder| in this directory| in the workspace| that exist| we have| that are here|][.|?|]
[what|which] [files|documents|things|file names] [do we have|are here|do you see|exist|are available|can you see|do I have|are stored here|have we got|are in the workspace|are in the current directory|are in here][?| right now?|]
[what|whats|what's|what is] [in|inside|stored in] [this folder|the folder|the current folder|the directory|here|the workspace|this directory|my workspace|my folder][?| now?|]
[list|show|check|look at|look into|have a look at|scan] [the current directory|this folder|this directory|the folder|the workspace|the working directory|my files|everything][.|]
[are there any files|is there anything|any files|do we have files|anything] [here|in the folder|in the workspace|in this folder|there][?|]
[directory listing|file list|list of files|ls -l|ls .|a list of all files|an overview of the files][ please|, please|.|]
"""
LIST_ALL_ZH = """
[这里|这个目录|这个文件夹|当前目录|工作区|目录|文件夹|你那里|我的文件夹|这儿][里|里面|下|下面|中|][都|][有哪些文件|有什么文件|有什么|有些什么|有啥文件|放了什么|有几个文件，都叫什么][？|?|呢？|]
[列出|列一下|显示|看看|看一下|告诉我|请列出|给我看看|帮我列出|展示][当前目录|所有文件|全部文件|这里的文件|这个文件夹里的文件|目录内容|文件夹的内容|文件列表|文件名][。|]
[有|都有][什么|哪些|啥]文件[？|?|呢|]
"""
LIST = """
[list|show|show me|print|display|name|give me|enumerate|tell me] [the|all|all the|every|my] [files|documents|file names|contents] [in|inside|of|from|below] [the folder|the directory|directory|folder|] #[.|]
[what|which] [files|documents|things] [are in|do we have in|exist in|are stored in|live in|can I find in|does it have in] [the folder|the directory|] #[?|]
[what|whats|what's|what is] [in|inside|stored in] [the folder|the directory|] # [folder|directory|][?|]
[list|show|check|look at|look into|have a look at|scan|ls|open] [the folder|the directory|directory|folder|] #[.|]
[look in|look into|check|go to] #[ and| then] [tell me|list|show me] [what is there|the files|what you find|what's inside][.|]
"""
LIST_ZH = """
[文件夹|目录|][ |]#[ |][里|里面|下|下面|中|目录里|文件夹里][都|][有哪些文件|有什么文件|有什么|有些什么|有啥|放了什么][？|?|]
[列出|列一下|显示|看看|看一下|告诉我|请列出|给我看看|帮我列出][文件夹|目录|][ |]#[ |][里的文件|的内容|下的文件|里面有什么|里有哪些文件|目录|里有什么][。|]
"""

# -- trees of agents ----------------------------------------------------------------------------------------------------

SIDE_BY_SIDE = """
[in parallel|simultaneously|at the same time|concurrently|at once|side by side|together|all at once][,|:|] [make|create|write|produce|prepare|generate|build|set up] [files |two files: |the files |]#[.|]
[make|create|write|produce|prepare|generate|build|set up|I want|I need|please make|get me] [these files |the following |two files |][in parallel|simultaneously|at the same time|concurrently|at once|side by side][:|,| -] #[.|]
[make|create|write|produce|prepare|generate|build|set up|I want|I need] #[,|] [in parallel|simultaneously|at the same time|concurrently|at once|side by side|all together][.| please.|]
[use|start|spawn|launch|run|employ|get|create|take|send|have|involve] [sub-agents|subagents|several agents|two agents|helpers|two helpers|assistants|workers|different agents|child agents|your team|a team|a few agents|one agent per file|an agent per file|one agent each|a separate agent for each file] [to make|to create|to write|to produce|for|and make|and let them write|that write|for this:|for these:|:] #[.|]
[delegate|distribute|divide|split|split up|share out|hand out|farm out|parallelise|assign] [this|the work|this job|it|the following|these|the writing|the task][ to agents| to sub-agents| among agents| among helpers| between two agents| between workers| to your team|][:| -|.] #[.|]
[let|have|make|get|ask|tell|allow] [sub-agents|subagents|two agents|helpers|two helpers|assistants|workers|different agents|your agents|the team|some agents|a couple of helpers|two of your agents] [work on|handle|do|write|create|make|take care of|each do one of|produce] [this|these|it|the following|these files|][:|] #[ in parallel| at the same time| simultaneously| at once|][.|]
[one agent per file|each file by its own agent|an agent for every file|a helper for each file|every file gets its own agent|separate agents, please|team work|parallel job|work in parallel][:|.| -] #[.|]
#[.| -|:|,] [Do it in parallel|Let agents do it|Use a sub-agent for each|One agent each|Work on them at the same time|Have agents do this|Delegate it|Use helpers|Spawn an agent for each|Let different agents write them|in parallel please|all at once][.|]
"""
SIDE_BY_SIDE_ZH = """
[同时|并行|一起|并发|同步][地|][创建|写|生成|新建|完成|制作|建立|做][两个文件|这些文件|][：|，|]#[。|]
[让|请让|叫|派|安排|请|要][两个|几个|不同的|多个|各个|][智能体|助手|子代理|子智能体|代理|帮手|工人|成员][同时|并行|分别|一起|各自|][工作|写|创建|完成|动手|做][：|，|:][ |]#[。|]
[把|将][任务|工作|这件事|下面的事|这些文件][分给|交给|分配给|委派给|派给][两个|几个|不同的|多个|][智能体|助手|子代理|子智能体|代理|帮手][：|，|:|去做：]#[。|]
[用|使用|启动|创建|派出][两个|几个|多个|不同的|][智能体|助手|子代理|子智能体|代理][来|去|][写|创建|完成|生成|做|分别写][：|，|]#[。|]
[每个文件|一个文件|每份文件][用|交给|由|派][一个|单独的一个|不同的][智能体|助手|代理|子代理][：|，|来写：|负责：]#[。|]
#[，|。|：][同时进行|并行完成|请并行|让子代理分别写|交给不同的助手|一个助手负责一个|同时写|分头去做][。|]
"""
PART = """
# [with|containing|saying|that says|should say|should contain|must contain|gets|needs|holds|gets the text|needs the text|with the text|with content|which says|with the word|, content|:|=|- ] ["*"|'*'|*]
# ("*")
# (content: "*")
# "*"
#: *
["*"|'*'] [in|into|to] #
[write|put|save] ["*"|'*'|*] [in|into|to] #
[one|one agent|the first|another|an agent|somebody|each] [makes|writes|creates|does|prepares] # [with|saying|containing] ["*"|'*']
[file |a file |]# [saying|gets|with|has|says|containing] ["*"|'*'|*]
"""
PART_ZH = """
[文件|][ |]#[ |][，|：|,|（|][内容|写|写上|里面写|内容是|内容为|放|写入][ |：|][“*”|"*"|*]
#（内容 *）
#“*”
[一个|一个助手|另一个|其中一个|有一个][写|创建|做|负责] #[，|，内容|，里面写][“*”|"*"]
把[“*”|*][写进|写到|写入|放进]#
"""
